"""NOTIFY wakes the waiters, and tells the holder that another client has queued up."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest

from aiorwlock_remote import Locks, LockTimeout, connect
from aiorwlock_remote.backends.postgresql.listener import ArrivalReader
from aiorwlock_remote.backends.postgresql.store import PostgresqlStore
from aiorwlock_remote.cas.stepper import CasStepper, CommandQueue
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import (
    LOUD,
    log_of,
    queued,
    statements,
    swaps,
    take,
    waited_for,
)
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.postgresql import Postgresql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.usefixtures("patient_steps"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


@pytest.fixture
def server(start_postgresql: StartPostgresql) -> Postgresql:
    return start_postgresql(config=LOUD)


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


async def test_the_next_waiter_is_notified(server: Postgresql) -> None:
    """By NOTIFY on its own channel, not by its polls."""
    async with connect(server.url) as locks, connect(server.url) as others:
        entered: list[str] = []
        with psycopg.connect(server.url, autocommit=True) as spy:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    async with locks.mutex("order", 1):
                        entered.append("in")

                group.start_soon(wait)
                await wait_until(lambda: listens(spy), 5)
                await held.release()
        assert entered == ["in"]
        notified = [s for s in statements(server) if s.startswith('LISTEN "rwlock_')]
        # Also whoever has made it wait listens from now on.
        assert 1 <= len(notified) <= 2


async def test_a_notified_waiter_needs_one_statement(server: Postgresql) -> None:
    """What stands there is in the notification."""
    async with connect(server.url) as locks, connect(server.url) as others:
        with psycopg.connect(server.url, autocommit=True) as spy:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    async with locks.mutex("order", 1):
                        pass

                group.start_soon(wait)
                await wait_until(lambda: listens(spy), 5)
                await anyio.sleep(0.5)  # it looks once more when it listens
                before = len(swaps(server))
                await held.release()
        # Two of the one who leaves, who did not know of the queue; one each to enter
        # and to leave.
        assert len(swaps(server)) == before + 4


async def test_a_holder_with_a_listener_knows_of_the_queue(server: Postgresql) -> None:
    """And is not refused when it leaves: one statement, not two."""
    async with connect(server.url) as locks, connect(server.url) as others:
        await waited(others, locks)
        await waited(locks, others)
        for _ in range(2):
            async with waited_for(others, locks, partial(queued, locks)):
                await anyio.sleep(0.2)  # it looks
                before = len(statements(server))
            # One of the one who leaves; one each to enter and to leave.
            assert len(statements(server)) == before + 3


async def test_whoever_has_made_others_wait_listens(
    server: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it never waits itself: one of its releases is refused, not each."""
    reads: list[object] = []
    was_read, log_retry = ArrivalReader._was_read, CasStepper._log_retry
    refused: list[object] = []

    def note_read(reader: ArrivalReader, *of: Any) -> None:  # noqa: ANN401
        was_read(reader, *of)
        reads.append(of)

    def note_refused(stepper: CasStepper, queue: CommandQueue, *error: Any) -> None:  # noqa: ANN401
        log_retry(stepper, queue, *error)
        command, _ = queue.waiting[0]
        if isinstance(command, Release):
            refused.append(command)

    # On a slow machine the waiter would prolong its entry before the release.
    poll_policy = PostgresqlStore.poll_policy
    patient = replace(poll_policy, poll_min=20.0, poll_max=20.0, entry_ttl=60.0)
    monkeypatch.setattr(PostgresqlStore, "poll_policy", patient)
    monkeypatch.setattr(ArrivalReader, "_was_read", note_read)
    monkeypatch.setattr(CasStepper, "_log_retry", note_refused)

    async with connect(server.url) as locks, connect(server.url) as others:

        async def heard(times: int) -> bool:
            return len(reads) == times

        async def listens(client: Locks) -> bool:
            return client.statistics().connections["listener"] == "open"

        async with others.mutex("order", 1):
            pass
        assert not await listens(others)  # nobody has waited for what it held
        for turn in range(3):
            async with waited_for(others, locks, partial(queued, locks)):
                await wait_until(partial(heard, turn), 5)
            if turn == 0:
                # Twice, if the listener of the waiter opened just then: it asks again.
                assert 1 <= len(refused) <= 2
                for client in (others, locks):
                    await wait_until(partial(listens, client), 5)
                refused.clear()
            assert refused == []


async def test_a_client_without_listener_is_not_notified(server: Postgresql) -> None:
    """It takes a lock of the whole server."""
    async with (
        connect(server.url) as locks,
        connect(server.url) as others,
        waited_for(others, locks),
    ):
        assert "pg_notify" not in "".join(log_of(server))


SPOILT = """
UPDATE doormans SET record = split_part(record, ' ', 1) || ' '
  || (substr(record, strpos(record, ' '))::jsonb || %s::jsonb)::text
WHERE resource_type = 'order'
"""


@pytest.mark.parametrize("channel", ["x" * 70, 7])
async def test_a_malformed_arrival_channel_is_ignored(
    server: Postgresql, channel: object
) -> None:
    """No channel has such a name; whoever queues up does so all the same."""
    async with connect(server.url) as locks, connect(server.url) as others:
        await waited(others, locks)
        held = await others.mutex("order", 1).acquire()
        with psycopg.connect(server.url, autocommit=True) as writer:
            writer.execute(SPOILT, [json.dumps({"ear": channel})])
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await wait_until(partial(queued, others), 5)
            await held.release()


async def waited(locks: Locks, others: Locks) -> None:
    """It has waited for something, and listens since."""
    held = await others.mutex("before", 1).acquire()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            async with locks.mutex("before", 1):
                pass

        group.start_soon(wait)
        await wait_until(partial(queued, others, 1, "before"), 5)
        await anyio.sleep(0.5)  # it looks once more when it listens
        await held.release()


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
    await wait_until(lambda: listens(spy), 5)
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
