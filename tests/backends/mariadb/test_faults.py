"""Requests that are lost, killed or late: nothing is leaked, nothing is guessed."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio
import pytest

from aiorwlock_remote import BackendError, BackendUnavailable, connect
from aiorwlock_remote.core.commands import (
    Claim,
    Command,
    Downgrade,
    Granted,
    Release,
    Released,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import StoreBase
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.mariadb.behind_proxy import quiet, through
from tests.backends.mariadb.products import kill, product_of, sessions, waiting
from tests.cas.tables import LEASE, ORDER, acquire, opened
from tests.renewals import renewed
from tests.servers.mariadb import MariadbServer, connected, run
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]
SEATS = "SELECT ticket FROM mutex_locks"


def lose(proxy: Proxy, when: str) -> None:
    """The next request, or its answer."""
    side = "server" if when == "before" else "client"
    proxy.cut_after(1, to=side)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_acquire_whose_answer_is_lost(
    db_tables: str, db_server: MariadbServer, when: str
) -> None:
    """It holds, or nothing does; who asks again gets the truth."""
    with through(db_server, db_tables) as (proxy, url):
        async with opened(url) as store:
            await quiet(proxy)
            lose(proxy, when)
            with pytest.raises(BackendUnavailable) as caught:
                await store.step(ORDER, acquire("t1"))
            assert not caught.value.nothing_done
            taken = Withdraw("g", Mode.WRITE, ("t1",))
            assert isinstance(await store.step(ORDER, taken), Withdrawn)
            assert run(db_tables, SEATS) == []
            assert isinstance(await store.step(ORDER, acquire("t2")), Granted)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_release_whose_answer_is_lost(
    db_tables: str, db_server: MariadbServer, when: str
) -> None:
    with through(db_server, db_tables) as (proxy, url):
        async with opened(url) as store:
            await quiet(proxy)
            await store.step(ORDER, acquire("t1"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(refused, store, Release("t1"))
                if when == "before":
                    lose(proxy, when)
                else:  # its first byte leaves before the transaction has ended
                    proxy.mute()
                    await wait_until(partial(nobody_holds, db_tables), 20)
                    proxy.cut()
            reply = await store.step(ORDER, Release("t1"))
            assert isinstance(reply, Released)
            assert reply.held == (when == "before")
            assert run(db_tables, SEATS) == []


@pytest.mark.parametrize("step", ["acquire", "join", "release"])
async def test_a_connection_that_ends_in_the_middle_of_a_step(
    db_tables: str, db_server: MariadbServer, step: str
) -> None:
    """The server goes on with the statements: both rows are changed, or neither is.

    ``ROW_COUNT()`` is -1 then, although the row was changed.
    """
    commands: dict[str, list[Command]] = {
        "acquire": [acquire("t1"), Release("t1"), acquire("t2")],
        "join": [acquire("t1"), Downgrade("t1", Claim("t2", LEASE))],
        "release": [acquire("t1"), Release("t1")],
    }
    *before, last = commands[step]
    with through(db_server, db_tables) as (proxy, url):
        async with opened(url) as store:
            await quiet(proxy)
            for command in before:
                await store.step(ORDER, command)
            async with anyio.create_task_group() as tasks:
                with connected(db_tables, autocommit=False) as foreign:
                    foreign.query("UPDATE doormans SET updated_at = UTC_TIMESTAMP(6)")
                    tasks.start_soon(tried, store, last)
                    await wait_until(lambda: waits(db_tables), 30)
                    proxy.cut(reset=True)
                    await wait_until(lambda: ended(proxy, 2), 30)
            await wait_until(lambda: all_left(db_tables), 30)
            seen = await store.look(ORDER)
            mutexes = run(db_tables, "SELECT ticket, acquired_at FROM mutex_locks")
            assert len(mutexes) == bool(seen.record.grants)
            for ticket in ("t1", "t2"):
                await store.step(ORDER, Release(ticket))
            assert run(db_tables, SEATS) == []


async def tried(store: StoreBase, command: Command) -> None:
    with suppress(BackendUnavailable):
        await store.step(ORDER, command)


async def waits(url: str) -> bool:
    return bool(waiting(url))


async def ended(proxy: Proxy, connections: int) -> bool:
    return proxy.ended >= connections


async def refused(store: StoreBase, command: Command) -> None:
    with pytest.raises(BackendUnavailable):
        await store.step(ORDER, command)


async def nobody_holds(tables: str) -> bool:
    return run(tables, SEATS) == []


async def test_a_row_that_is_locked_for_long(db_tables: str) -> None:
    """The server gives up before we do: so it is known that nothing was done."""
    async with opened(f"{db_tables}?call_timeout=2") as store:
        await store.step(ORDER, acquire("t1"))
        with connected(db_tables, autocommit=False) as foreign:
            foreign.query("UPDATE doormans SET updated_at = UTC_TIMESTAMP(6)")
            with pytest.raises(BackendUnavailable) as caught:
                await store.step(ORDER, Release("t1"))
            assert caught.value.nothing_done
            assert product_of(db_tables).too_long in str(caught.value)
        reply = await store.step(ORDER, Release("t1"))
        assert isinstance(reply, Released)
        assert reply.held
        assert run(db_tables, SEATS) == []


async def test_a_seat_that_is_locked_for_long(db_tables: str) -> None:
    """The doorman was changed by then, and is as it was."""
    async with opened(f"{db_tables}?call_timeout=2") as store:
        await store.step(ORDER, acquire("t1"))
        await store.step(ORDER, Release("t1"))
        version = run(db_tables, "SELECT version FROM doormans")
        with connected(db_tables, autocommit=False) as foreign:
            foreign.query(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES ('order', 42, 'theirs')"
            )
            with pytest.raises(BackendUnavailable) as caught:
                await store.step(ORDER, acquire("t2"))
            assert caught.value.nothing_done
            assert run(db_tables, "SELECT version FROM doormans") == version
        assert isinstance(await store.step(ORDER, acquire("t2")), Granted)


async def test_a_session_that_is_killed_while_it_waits(db_tables: str) -> None:
    async with opened(db_tables) as store:
        await store.step(ORDER, acquire("t1"))
        with connected(db_tables, autocommit=False) as foreign:
            foreign.query("UPDATE doormans SET updated_at = UTC_TIMESTAMP(6)")
            failed: list[BaseException] = []
            async with anyio.create_task_group() as group:

                async def release() -> None:
                    with pytest.raises(BackendUnavailable) as caught:
                        await store.step(ORDER, Release("t1"))
                    failed.append(caught.value)

                group.start_soon(release)
                await wait_until(lambda: killed(db_tables), 30)
            assert failed
        reply = await store.step(ORDER, Release("t1"))
        assert isinstance(reply, Released)
        assert reply.held


async def test_a_waiter_survives_lost_connections(db_tables: str) -> None:
    first = connect(db_tables, lease=3)
    async with first as locks, connect(db_tables) as others:
        held = await locks.mutex("order", 42).acquire()
        entered = anyio.Event()
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                async with others.mutex("order", 42):
                    entered.set()

            async def queued() -> bool:
                return bool((await locks.mutex("order", 42).info()).queue)

            group.start_soon(wait)
            await wait_until(queued, 30)
            for _ in range(5):
                kill(db_tables, *sessions(db_tables))
                await anyio.sleep(0.05)
            with suppress(BackendError):  # then its lease ends
                await held.release()
            with anyio.fail_after(30):
                await entered.wait()


@pytest.mark.only_on("asyncio", "the keeper has a loop of its own")
@pytest.mark.usefixtures("renewed_often")
async def test_a_silent_server_ends_no_lease(
    db_tables: str, db_server: MariadbServer
) -> None:
    """Renewals are tried again until the deadline."""
    with through(db_server, db_tables) as (proxy, url):
        hurried = connect(f"{url}?call_timeout=1.5", connect_timeout=5)
        async with hurried as locks, locks.mutex("order", 42) as held:
            await renewed(held)
            proxy.black_hole(on=True)
            await anyio.sleep(2.5)
            proxy.black_hole(on=False)
            await renewed(held)


async def killed(url: str) -> bool:
    found = waiting(url)
    kill(url, *found)
    return bool(found)


async def all_left(url: str) -> bool:
    """Whether the server has ended its clients' sessions, with their statements."""
    return not sessions(url)
