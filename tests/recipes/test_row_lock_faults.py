"""Row locks when something goes wrong on the way."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import (
    BackendUnavailable,
    Closed,
    ConfigurationError,
    Locks,
    LockTimeout,
    connect,
)
from aiorwlock_remote.errors import AcquireUncertain
from aiorwlock_remote.recipes import RowLock
from tests.locks.body_task import Body
from tests.recipes.fix_rows import LocksSite, port_of, through
from tests.recipes.row_sites import FREE, LOCKED, MODES, PATIENCE, ask
from tests.runtime.cancel_at import CancelAt
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("what differs is in the driver's sockets, and tested there"),
]


@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_reply(postgresql: LocksSite, mode: str) -> None:
    """Nobody can tell what became of it, and nothing is guessed."""
    with Proxy(port_of(postgresql.url)) as proxy:
        async with connect(through(proxy, postgresql.url)) as locks:
            lock = locks.row_lock("invoices", 1)
            await lock.look()
            async with ask(lock, mode)():  # its statements are prepared
                pass
            proxy.cut_after(1, to="client")
            with pytest.raises(AcquireUncertain) as caught:
                await ask(lock, mode)(timeout=5)
            assert caught.value.lease is None
            assert caught.value.resource == "invoices/1"
            assert postgresql.plain.state() == LOCKED[mode]


@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_reply_to_a_release(postgresql: LocksSite, mode: str) -> None:
    with Proxy(port_of(postgresql.url)) as proxy:
        async with connect(through(proxy, postgresql.url)) as locks:
            lock = locks.row_lock("invoices", 1)
            async with ask(lock, mode)():
                pass
            held = await ask(lock, mode)()
            proxy.cut_after(1, to="client")
            with pytest.raises(BackendUnavailable, match="perhaps not given") as caught:
                await held.release()
            assert "UPDATE" in caught.value.hint
            with pytest.raises(ValueError, match="mine"):
                async with ask(lock, mode)():
                    proxy.cut_after(1, to="client")
                    raise ValueError("mine")


async def test_a_server_that_is_not_there(postgresql: LocksSite) -> None:
    """What was certainly not carried out is sent again, for a while."""
    with Proxy(port_of(postgresql.url)) as proxy:
        async with connect(through(proxy, postgresql.url)) as locks:
            lock = locks.row_lock("invoices", 1)
            held = await lock.write()
            proxy.refuse()
            proxy.cut_after(0, to="server")
            async with anyio.create_task_group() as group:
                group.start_soon(_there_again, proxy)
                with suppress(BackendUnavailable):  # the first finds the connection cut
                    await held.release()
                async with locks.row_lock("invoices", 2).write(timeout=PATIENCE):
                    assert postgresql.plain.state(2) == LOCKED["write"]


async def _there_again(proxy: Proxy) -> None:
    await anyio.sleep(0.3)
    proxy.accept()


@pytest.mark.only_on("asyncio", "it is the server that stops waiting")
@pytest.mark.parametrize("mode", MODES)
async def test_a_row_that_a_transaction_has_locked(
    postgresql: LocksSite, mode: str
) -> None:
    """The server stops waiting before we do: no statement is left that would lock."""
    async with connect(postgresql.url + "?call_timeout=2") as locks:
        lock = locks.row_lock("invoices", 1)
        await lock.look()
        postgresql.plain.begin("UPDATE invoices SET total = 1 WHERE id = 1")
        try:
            with pytest.raises(BackendUnavailable) as caught:
                await ask(lock, mode)(timeout=0)
            assert caught.value.nothing_done
        finally:
            postgresql.plain.commit()
        assert postgresql.plain.state() == FREE
        async with ask(lock, mode)(timeout=PATIENCE):
            pass


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_behind_a_transaction(oracle: LocksSite, mode: str) -> None:
    """It is carried out when the row is free, and then given back."""
    async with connect(oracle.url) as locks:
        lock = locks.row_lock("invoices", 1)
        await lock.look()
        oracle.plain.begin("UPDATE invoices SET total = 1 WHERE id = 1")
        async with anyio.create_task_group() as group:
            group.start_soon(_commit_later, oracle)
            with anyio.move_on_after(0.1):
                await ask(lock, mode)()
            assert oracle.plain.state() == FREE


@pytest.mark.parametrize("mode", MODES)
async def test_a_file_that_somebody_writes(sqlite: LocksSite, mode: str) -> None:
    """Steps of other locks go on meanwhile; a waiter gets in afterwards."""
    path = sqlite.url.partition("?rows=")[2]
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1)
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as group:

            async def take() -> None:
                async with ask(lock, mode)(timeout=PATIENCE):
                    pass

            group.start_soon(take)
            await anyio.sleep(0.05)
            with anyio.fail_after(4):  # the file is locked for 5
                async with locks.mutex("order", 42):
                    pass
            writer.execute("ROLLBACK")
        writer.close()
    assert sqlite.plain.state() == FREE


async def test_closing_gives_back(sqlite: LocksSite) -> None:
    """Whoever holds, and whoever waits."""
    waiting = anyio.Event()
    async with anyio.create_task_group() as group:
        async with connect(sqlite.url) as locks:
            _first = await locks.row_lock("invoices", 1).write()
            _second = await locks.row_lock("invoices", 2).read()
            third = locks.row_lock("invoices", 3)
            sqlite.plain.step("WLock", 3)

            async def wait() -> None:
                with pytest.raises(LockTimeout):
                    await third.read(timeout=0)
                waiting.set()
                with pytest.raises(Closed):
                    await third.read()

            group.start_soon(wait)
            await waiting.wait()
            await anyio.sleep(0.1)
        for key in (1, 2):
            assert sqlite.plain.state(key) == FREE
        with pytest.raises(Closed):
            await third.look()
    assert sqlite.plain.state(3) == LOCKED["write"]


async def test_closing_under_a_request(oracle: LocksSite) -> None:
    """It was cancelled; what it obtains is given back before the store is closed."""
    async with connect(oracle.url) as locks:
        lock = locks.row_lock("invoices", 1)
        await lock.look()
        oracle.plain.begin("UPDATE invoices SET total = 1 WHERE id = 1")
        async with anyio.create_task_group() as group:
            group.start_soon(_commit_later, oracle)
            with anyio.move_on_after(0.1):
                await lock.write()
    assert oracle.plain.state() == FREE


@pytest.mark.parametrize("mode", MODES)
async def test_closing_while_it_is_being_obtained(sqlite: LocksSite, mode: str) -> None:
    """The task gets the error, and the row is free."""
    errors: list[BaseException] = []
    locks = await connect(sqlite.url)

    async def obtain() -> None:
        try:
            await ask(locks.row_lock("invoices", 1), mode)()
        except Closed as exc:
            errors.append(exc)

    async with anyio.create_task_group() as group:
        group.start_soon(obtain)
        await checkpoint()
        await locks.aclose()
    assert [type(error) for error in errors] == [Closed]
    assert sqlite.plain.state() == FREE


@pytest.mark.parametrize("mode", MODES)
async def test_closing_under_a_body(sqlite: LocksSite, mode: str) -> None:
    """It is cancelled, as nothing protects it any more."""
    locks = await connect(sqlite.url)
    async with Body(ask(locks.row_lock("invoices", 1), mode)()) as body:
        await locks.aclose()
        assert await body.left() == "cancelled"
        with pytest.raises(Closed):
            body.held.check()
    assert isinstance(body.error, Closed)
    assert sqlite.plain.state() == FREE


async def _commit_later(site: LocksSite) -> None:
    await anyio.sleep(0.5)
    site.plain.commit()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.only_on("asyncio", "its own cancelling")
async def test_cancelled_natively_again_and_again(
    sqlite: LocksSite, mode: str, *, late: bool
) -> None:
    """A task that is cancelled at two suspensions in a row leaves no count."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1)
        await lock.look()

        async def use() -> None:
            async with ask(lock, mode)():
                await asyncio.sleep(0)

        for k in range(1, 40):
            first = CancelAt(use(), k, cancel_this, late=late)
            second = CancelAt(_of(first), k + 1, cancel_this, late=late)
            with suppress(asyncio.CancelledError):
                await asyncio.create_task(_of(second))
            async with lock.write(timeout=PATIENCE):  # requests go in order
                pass
            assert sqlite.plain.state() == FREE, k
            if first.suspensions < k:
                break
        else:
            pytest.fail("it never ends")


def cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _of(awaitable: CancelAt) -> None:
    await awaitable


# ------------------------------------------------------------------------------
# Several locks in one table: by other keys, and by other columns of the same row.


@pytest.fixture
async def locks(sqlite: LocksSite) -> AsyncIterator[Locks]:
    """Rows 1 and 2 have numbers 2 and 1; all are of one customer."""
    for text in (
        "ALTER TABLE invoices ADD COLUMN number INTEGER",
        "ALTER TABLE invoices ADD COLUMN customer TEXT DEFAULT 'A'",
        "ALTER TABLE invoices ADD COLUMN mark TEXT NOT NULL DEFAULT 'Unlock'",
        "ALTER TABLE invoices ADD COLUMN readers INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE invoices ADD COLUMN why TEXT",
        "UPDATE invoices SET number = 3 - id",
    ):
        sqlite.plain.run(text)
    async with connect(sqlite.url) as locks:
        yield locks


async def test_they_do_not_exclude_each_other(locks: Locks) -> None:
    one = locks.row_lock("invoices", 1)
    other_row = locks.row_lock("invoices", 1, key="number")
    beside = locks.row_lock("invoices", 1, mark="mark", count="readers", reason="why")
    async with one.write(), other_row.write(timeout=1), beside.write(timeout=1):
        pass


async def test_who_waits_for_one_is_not_in_the_way_of_another(
    sqlite: LocksSite, locks: Locks
) -> None:
    one = locks.row_lock("invoices", 1)
    other_row = locks.row_lock("invoices", 1, key="number")
    assert sqlite.plain.step("WLock", 1)
    assert sqlite.plain.step("WLock", 2)
    let_in = anyio.Event()

    async def wait(lock: RowLock) -> None:
        async with lock.write(timeout=PATIENCE):
            let_in.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait, one)
        with pytest.raises(LockTimeout):
            await one.write(timeout=0.1)
        group.start_soon(wait, other_row)
        with pytest.raises(LockTimeout):
            await other_row.write(timeout=0.1)
        assert sqlite.plain.step("WUnlock", 2)
        await let_in.wait()
        assert sqlite.plain.step("WUnlock", 1)


async def test_a_key_that_is_not_unique_is_refused_beside_one_that_is(
    sqlite: LocksSite, locks: Locks
) -> None:
    """Nothing of the rows that it names is changed."""
    async with locks.row_lock("invoices", 3).write("ours"):
        assert sqlite.plain.step("WLock", 4)
        with pytest.raises(ConfigurationError, match="column customer must be unique"):
            await locks.row_lock("invoices", "A", key="customer").write(timeout=0)
        assert sqlite.plain.stands(3) == ("WriteLock", 0, "ours")
        assert sqlite.plain.stands(4) == ("WriteLock", 0, "theirs")
