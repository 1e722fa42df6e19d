"""What a step costs, and what becomes of it when others are quicker."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.mariadb.behind_proxy import quiet, through
from tests.backends.mariadb.products import foreign_mutexes, waiting
from tests.cas.tables import ORDER, acquire, opened, orders
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import MariadbServer, connected, run
from tests.servers.plain import PlainMariadb

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.usefixtures("patient_steps"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]
one_loop = pytest.mark.only_on("asyncio", "what the server does is the same on both")


async def test_a_step_is_one_request(db_tables: str, db_server: MariadbServer) -> None:
    with through(db_server, db_tables) as (proxy, url):
        async with connect(url) as locks:
            await quiet(proxy)
            asked = len(proxy.chunks)
            for _ in range(2):  # a name that is new, and one that was used before
                held = await locks.mutex("order", 1).acquire()
                assert len(proxy.chunks) == asked + 1
                await held.extend()
                assert len(proxy.chunks) == asked + 2
                await held.release()
                assert len(proxy.chunks) == asked + 3
                asked += 3
            lock = locks.rwlock("catalog", 7)
            for entry in (lock.reader, lock.writer, lock.reader):
                async with entry:
                    assert len(proxy.chunks) == asked + 1
                assert len(proxy.chunks) == asked + 2
                asked += 2


@one_loop
@pytest.mark.only_on("asyncio", "the server counts")
async def test_a_thousand_tasks_wait_quietly(start_db: StartMariadb) -> None:
    """Five statements a second for all of them, by the server's own count."""
    server = start_db()

    def statements() -> int:
        ((_, number),) = run(server.root, "SHOW GLOBAL STATUS LIKE 'Questions'")
        return int(number)

    async with connect(server.url) as locks, connect(server.url) as others:
        held = await others.mutex("order", 1).acquire()
        entered = 0

        async def wait() -> None:
            nonlocal entered
            async with locks.mutex("order", 1):
                entered += 1

        async def came_in(number: int) -> bool:
            return entered >= number

        async with anyio.create_task_group() as group:
            for _ in range(1000):
                group.start_soon(wait)
            await anyio.sleep(3.5)  # who has waited for a while looks less often
            before = statements()
            await anyio.sleep(3)
            assert statements() - before <= 3 * 5 + 8  # 8 of them are the counting
            await held.release()
            await wait_until(lambda: came_in(10), 30)
            group.cancel_scope.cancel()


@one_loop
async def test_a_foreign_insert_under_way_is_waited_for(db_tables: str) -> None:
    """Its outcome decides, and nothing of ours is left behind if it wins."""
    plain = PlainMariadb(db_tables, "")
    async with connect(db_tables) as locks:
        for used in (False, True):  # the doorman's row is made, or changed
            with connected(db_tables, autocommit=False) as foreign:
                foreign.query(
                    "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                    " VALUES ('order', 1, 'theirs')"
                )
                results: list[object] = []
                async with anyio.create_task_group() as group:

                    async def attempt(results: list[object] = results) -> None:
                        results.append(await locks.mutex("order", 1).try_acquire())

                    group.start_soon(attempt)
                    await wait_until(lambda: waits(db_tables), 30)
                    foreign.commit()
                assert results == [None]
            fresh = "SELECT count(*) FROM doormans WHERE version IS NOT NULL"
            assert run(db_tables, fresh) == [(int(used),)]
            assert plain.read(("order", 1)) == "theirs"
            assert plain.free(("order", 1), "theirs")
            async with locks.mutex("order", 1):
                assert plain.read(("order", 1)) not in (None, "theirs")


@one_loop
async def test_a_doorman_made_at_the_same_time(db_tables: str) -> None:
    """The seat was free, the doorman's row was not there, and then it was."""
    async with connect(db_tables) as locks:
        with connected(db_tables, autocommit=False) as foreign:
            foreign.query(
                "INSERT INTO doormans (resource_type, resource_id, active_readers)"
                " VALUES ('order', 1, '{}')"
            )
            fences: list[int] = []
            async with anyio.create_task_group() as group:

                async def attempt() -> None:
                    async with locks.mutex("order", 1) as held:
                        fences.append(held.fence)

                group.start_soon(attempt)
                await wait_until(lambda: waits(db_tables), 30)
                foreign.commit()
        assert len(fences) == 1
        assert PlainMariadb(db_tables, "").read(("order", 1)) is None


@one_loop
async def test_a_published_doorman_is_taken_over(db_tables: str) -> None:
    """Its row has nothing in our columns; its age says nothing of our fences."""
    run(
        db_tables,
        "INSERT INTO doormans (resource_type, resource_id, active_readers,"
        " created_at) VALUES ('order', 1, '{}', '2001-01-01 00:00:00')",
    )
    async with connect(db_tables) as locks, connect(db_tables) as others:
        fences: list[int] = []
        for one in (locks, others, locks):
            async with one.mutex("order", 1) as held:
                fences.append(held.fence)
        assert fences == sorted(set(fences))
        assert fences[0] > 1_700_000_000_000_000


@one_loop
@pytest.mark.parametrize("after", ["CHAIN", "RELEASE"])
async def test_a_commit_is_no_more_than_that(
    start_db: StartMariadb, after: str
) -> None:
    """Whatever else it is there: nobody would end another transaction that it begins,
    and nothing of that would stand.
    """
    url = start_db(config={"completion-type": after}).url
    async with opened(f"{url}?connections=1") as store:
        await store.step(ORDER, acquire("t1", Mode.READ))  # a transaction
        await store.step(ORDER, acquire("t2", Mode.READ))  # no more than a statement
        assert "t2" in recorded(url)
        sit = "INSERT INTO mutex_locks VALUES ('order', 1, 'theirs', UTC_TIMESTAMP(6))"
        run(url, sit)
        await store.step(orders(2)[1], acquire("t3"))  # rolled back
        await store.step(ORDER, acquire("t4", Mode.READ))
        assert "t4" in recorded(url)


def recorded(url: str) -> str:
    query = "SELECT record FROM doormans WHERE resource_id = 42"
    return str(run(url, query)[0][0])


@one_loop
async def test_a_deadlock_is_nobodys_business(db_tables: str) -> None:
    """Somebody else's transaction locks both rows the other way round and wins."""
    async with connect(db_tables) as locks:
        async with locks.mutex("order", 1):
            pass
        with connected(db_tables, autocommit=False) as foreign:
            foreign.query(foreign_mutexes(500))
            results: list[object] = []
            async with anyio.create_task_group() as group:

                async def attempt() -> None:
                    results.append(await locks.mutex("order", 1).try_acquire())

                group.start_soon(attempt)
                await wait_until(lambda: waits(db_tables), 30)
                # Ours waits for the seat and has the doorman's row; it is the smaller.
                await anyio.to_thread.run_sync(
                    foreign.query, "UPDATE doormans SET updated_at = UTC_TIMESTAMP(6)"
                )
                foreign.rollback()
        assert results[0] is not None
        assert deadlocks(db_tables) > 0


async def waits(url: str) -> bool:
    """For a lock."""
    return bool(waiting(url))


def deadlocks(url: str) -> int:
    metrics = "information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
    ((number,),) = run(url, f"SELECT count FROM {metrics}")  # noqa: S608 - no input
    return int(number)
