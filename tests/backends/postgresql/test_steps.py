"""What a step costs, and what becomes of it when others are quicker."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest

from aiorwlock_remote import BackendUnavailable, Locks, LockTimeout, connect
from aiorwlock_remote.testing.conformance.party import until
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.plain_postgresql import PlainPostgresql
from tests.servers.postgresql import Postgresql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

LOUD = {"log_statement": "all", "log_line_prefix": "%a|"}


@pytest.fixture
def server(start_postgresql: StartPostgresql) -> Postgresql:
    return start_postgresql(config=LOUD)


def log_of(server: Postgresql) -> str:
    return Path(server.folder / server.log_name).read_text()


def statements(server: Postgresql) -> list[str]:
    """What this library has asked for so far, by the server's log."""
    asked = r"^aiorwlock_remote\|LOG:  (?:execute [^:]*|statement): "
    entries = re.split(asked, log_of(server), flags=re.MULTILINE)[1:]
    return [entry.split("\n")[0] for entry in entries]


async def test_a_mutex_is_one_statement_each_way(server: Postgresql) -> None:
    async with connect(server.url) as locks:
        for _ in range(3):
            held = await locks.mutex("order", 1).acquire()
            before = len(statements(server))
            assert await held.release()
            assert len(statements(server)) == before + 1
            before = len(statements(server))
            held = await locks.mutex("order", 1).acquire()
            assert len(statements(server)) == before + 1
            await held.release()


async def test_only_a_release_need_not_wait_for_the_disk(server: Postgresql) -> None:
    """And only where what a crash takes back ends by itself."""

    def lazy() -> int:
        return log_of(server).count("set_config('synchronous_commit', 'off'")

    async with connect(server.url) as locks:
        held = await locks.mutex("order", 1).acquire()
        await held.extend()
        assert lazy() == 0
        assert await held.release()
        assert lazy() == 1
        for_ever = await locks.mutex("order", 1, lease=None).acquire()
        assert await for_ever.release()
        assert lazy() == 1


async def test_nor_does_who_queues_up(server: Postgresql) -> None:
    """Nothing is held by a place, and who waits for it asks again."""
    async with connect(server.url) as locks, connect(server.url) as others:
        held = await others.mutex("order", 1, lease=None).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await until(partial(queued, others), 5)
            assert log_of(server).count("set_config('synchronous_commit', 'off'") == 1
            await held.release()


async def test_who_had_queued_up_comes_in_after_a_crash(server: Postgresql) -> None:
    """Whether the place was on the disk or not."""
    async with (
        connect(server.url, connect_timeout=20) as locks,
        connect(server.url, connect_timeout=20) as others,
    ):
        held = await others.mutex("order", 1, lease=60).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await until(partial(queued, others), 5)
            server.restart()  # kill -9
            await until(partial(answers, others), 20)
            assert await held.release()


async def test_a_crash_gives_nobody_a_lock_twice(server: Postgresql) -> None:
    """Whatever it takes back: who came in since stays in."""
    async with connect(server.url, connect_timeout=20) as locks:
        first = await locks.mutex("order", 1, lease=60).acquire()
        assert await first.release()
        second = await locks.mutex("order", 1, lease=60).acquire()
        released = await locks.mutex("order", 2, lease=3).acquire()
        assert await released.release()
        server.restart()  # kill -9
        await until(partial(answers, locks), 20)
        assert (await locks.mutex("order", 1).info()).holders[0].holder == second.holder
        async with locks.mutex("order", 2).acquire(timeout=20) as held:
            assert held.fence > released.fence
        assert await second.release()


async def answers(locks: Locks) -> bool:
    with suppress(BackendUnavailable):
        await locks.mutex("order", 3).info()
        return True
    return False


async def test_readers_are_one_statement_each(server: Postgresql) -> None:
    async with connect(server.url) as locks:
        lock, before = locks.rwlock("c", 1), len(statements(server))
        for _ in range(3):
            async with lock.reader:
                pass
        assert len(statements(server)) == before + 6


async def test_who_is_refused_is_told_what_stands_there(server: Postgresql) -> None:
    """No second statement asks for it."""
    async with connect(server.url) as locks, connect(server.url) as others:
        async with others.mutex("order", 1):
            before = len(statements(server))
            assert await locks.mutex("order", 1).try_acquire() is None
            assert len(statements(server)) == before + 1
        before = len(statements(server))
        async with locks.mutex("order", 1):  # it knows of the holder only
            assert len(statements(server)) == before + 2


@pytest.mark.only_on("asyncio", "the server counts")
async def test_a_thousand_tasks_wait_quietly(server: Postgresql) -> None:
    """About one statement in 1.75 s keeps their place; none looks for changes."""
    async with connect(server.url) as locks, connect(server.url) as others:
        held = await others.mutex("order", 1).acquire()
        entered = 0

        async def wait() -> None:
            nonlocal entered
            async with locks.mutex("order", 1):
                entered += 1

        async with anyio.create_task_group() as group:
            for _ in range(1000):
                group.start_soon(wait)
            await anyio.sleep(2)  # the first has asked, and somebody listens
            before = len(statements(server))
            await anyio.sleep(5)
            assert len(statements(server)) - before <= 8  # "SELECT 1" among them
            await held.release()
        assert entered == 1000


async def test_whoever_is_next_is_told(server: Postgresql) -> None:
    """By NOTIFY on its own channel, not by its polls."""
    async with connect(server.url) as locks, connect(server.url) as others:
        told: list[str] = []
        with psycopg.connect(server.url, autocommit=True) as spy:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    async with locks.mutex("order", 1):
                        told.append("in")

                group.start_soon(wait)
                await until(lambda: listens(spy), 5)
                await held.release()
        assert told == ["in"]
        notified = [s for s in statements(server) if s.startswith('LISTEN "rwlock_')]
        assert len(notified) == 1


async def test_who_is_told_needs_one_statement(server: Postgresql) -> None:
    """What stands there is in the notification."""
    async with connect(server.url) as locks, connect(server.url) as others:
        with psycopg.connect(server.url, autocommit=True) as spy:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    async with locks.mutex("order", 1):
                        pass

                group.start_soon(wait)
                await until(lambda: listens(spy), 5)
                await anyio.sleep(0.5)  # it looks once more when it listens
                before = len(statements(server))
                await held.release()
        # Two of the one who leaves, who did not know of the queue; one each to enter
        # and to leave.
        assert len(statements(server)) == before + 4


async def test_who_can_be_told_knows_of_the_queue(server: Postgresql) -> None:
    """And is not refused when it leaves: one statement, not two."""
    async with connect(server.url) as locks, connect(server.url) as others:
        await waited(others, locks)
        await waited(locks, others)
        for _ in range(2):
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as group:
                group.start_soon(take, locks)
                await until(partial(queued, locks), 5)
                await anyio.sleep(0.2)  # it looks
                before = len(statements(server))
                await held.release()
            # One of the one who leaves; one each to enter and to leave.
            assert len(statements(server)) == before + 3


async def test_nobody_is_told_who_does_not_listen(server: Postgresql) -> None:
    """It takes a lock of the whole server."""
    async with connect(server.url) as locks, connect(server.url) as others:
        held = await others.mutex("order", 1).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await until(partial(queued, others), 5)
            assert "pg_notify" not in "".join(log_of(server))
            await held.release()


SPOILT = """
UPDATE doormans SET record = record::jsonb || %s::jsonb
WHERE resource_type = 'order'
"""


@pytest.mark.parametrize("ear", ["x" * 70, 7])
async def test_an_ear_that_is_none(server: Postgresql, ear: object) -> None:
    """No channel has such a name; whoever queues up does so all the same."""
    async with connect(server.url) as locks, connect(server.url) as others:
        await waited(others, locks)
        held = await others.mutex("order", 1).acquire()
        with psycopg.connect(server.url, autocommit=True) as writer:
            writer.execute(SPOILT, [json.dumps({"ear": ear})])
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await until(partial(queued, others), 5)
            await held.release()


async def take(locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass


async def waited(locks: Locks, others: Locks) -> None:
    """It has waited for something, and listens since."""
    held = await others.mutex("before", 1).acquire()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            async with locks.mutex("before", 1):
                pass

        group.start_soon(wait)
        await until(partial(queued, others, 1, "before"), 5)
        await anyio.sleep(0.5)  # it looks once more when it listens
        await held.release()


async def queued(locks: Locks, number: int = 1, kind: str = "order") -> bool:
    return len((await locks.mutex(kind, 1).info()).queue) == number


async def test_a_notification_that_is_not_ours(
    server: Postgresql, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may send one; who waits waits on."""
    async with connect(server.url) as locks, connect(server.url) as others:
        with psycopg.connect(server.url, autocommit=True) as spy:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as group:
                group.start_soon(shouted, spy)
                with pytest.raises(LockTimeout):
                    await locks.mutex("order", 1).acquire(timeout=3)
            async with anyio.create_task_group() as group:
                group.start_soon(held.release)
                async with locks.mutex("order", 1).acquire(timeout=10):
                    pass
    assert [r.message for r in caplog.records if r.name == "asyncio"] == []


async def shouted(spy: psycopg.Connection[tuple[object, ...]]) -> None:
    await until(lambda: listens(spy), 5)
    query = "SELECT query FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    (row,) = spy.execute(query).fetchall()
    channel = str(row[0]).split('"')[1]
    for payload in (
        "",
        "order,1",
        "[1",
        '["order", 1, "v"]',
        '["order", 1, {}]',
        '["order", 1, "v", "{", "b", "n"]',
        "[[], {}]",
        "[" * 7_900,
        '["order", 1, "v", "{}", "2026-01-01 00:00+00", "2026-01-01 00:00"]',
    ):
        spy.execute("SELECT pg_notify(%s, %s)", (channel, payload))


async def listens(spy: psycopg.Connection[tuple[object, ...]]) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    return spy.execute(query).fetchone() is not None


async def test_a_foreign_insert_under_way_is_waited_for(server: Postgresql) -> None:
    """Its outcome decides, and nothing of ours is left behind if it wins."""
    plain = PlainPostgresql(server.url, "")
    async with connect(server.url) as locks:
        with psycopg.connect(server.url) as foreign:
            foreign.execute(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES ('order', 1, 'theirs')"
            )
            results: list[object] = []
            async with anyio.create_task_group() as group:

                async def attempt() -> None:
                    results.append(await locks.mutex("order", 1).try_acquire())

                group.start_soon(attempt)
                await until(lambda: waits(server), 5)
                foreign.commit()
            assert results == [None]
        assert plain.read(("order", 1)) == "theirs"
        assert plain.free(("order", 1), "theirs")
        async with locks.mutex("order", 1):
            assert plain.read(("order", 1)) not in (None, "theirs")


async def waits(server: Postgresql) -> bool:
    with psycopg.connect(server.url) as connection:
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return connection.execute(query).fetchone() is not None


async def test_a_doorman_made_at_the_same_time_undoes_the_seat(
    server: Postgresql,
) -> None:
    """The seat was free, the doorman's row was not there, and then it was."""
    async with connect(server.url) as locks:
        with psycopg.connect(server.url) as foreign:
            foreign.execute(
                "INSERT INTO doormans (resource_type, resource_id, version, record)"
                " VALUES ('order', 1, 'new', NULL)"
            )
            fences: list[int] = []
            async with anyio.create_task_group() as group:

                async def attempt() -> None:
                    async with locks.mutex("order", 1) as held:
                        fences.append(held.fence)

                group.start_soon(attempt)
                await until(lambda: waits(server), 5)
                foreign.commit()
        assert len(fences) == 1
        assert PlainPostgresql(server.url, "").read(("order", 1)) is None
