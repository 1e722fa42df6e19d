"""The release of a row lock notifies those that wait for the row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import psycopg
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.recipes import RowHeld, RowLock
from aiorwlock_remote.recipes.row_lock import acquirer
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.recipes.fix_rows import postgresql_site
from tests.recipes.row_sites import (
    ATTENDING,
    MODES,
    PATIENCE,
    ask,
    attended,
    held_elsewhere,
    never_look_again,
)
from tests.servers.plain_rows import PlainRows

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

LEASES = (None, 30.0)
SHORT = 0.3


@pytest.fixture
def plain(tables: str) -> Iterator[PlainRows]:
    """The user's table, with rows 1 to 5."""
    with postgresql_site(tables) as site:
        yield site.plain


@pytest.fixture(autouse=True)
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    never_look_again(monkeypatch)


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("mode", MODES)
async def test_a_row_waiter_is_notified(
    tables: str, plain: PlainRows, mode: str, lease: float | None
) -> None:
    """By another process, as far as the two know of each other."""
    async with somebody_waits(tables, plain, mode, lease) as held:
        await held.release()


async def test_each_has_its_row(tables: str, plain: PlainRows) -> None:
    async with connect(tables) as ours, connect(tables) as theirs:
        one, two = [await row(theirs, None, key).write() for key in (1, 2)]
        got: list[int] = []
        async with anyio.create_task_group() as group:
            for key in (1, 2):
                group.start_soon(take, row(ours, None, key), "write", got)
            await wait_until(lambda: attended(plain, 2), PATIENCE)
            await two.release()
            await wait_until(lambda: has(got, 1), PATIENCE)
            assert plain.state(1) == ("WriteLock", 0)
            await one.release()


async def test_a_reader_that_leaves_others_notifies_nobody(
    tables: str, plain: PlainRows
) -> None:
    """Only when the row is free."""
    async with connect(tables) as ours, connect(tables) as theirs:
        first, last = [await held_elsewhere(row(theirs), "read") for _ in range(2)]
        with heard(tables) as notices:
            async with anyio.create_task_group() as group:
                group.start_soon(take, row(ours), "write")
                await wait_until(lambda: attended(plain, 1), PATIENCE)
                await first.release()
                assert not notifications(notices)
                await last.release()
            assert notifications(notices)


async def test_without_waiters_no_notification_is_sent(
    tables: str, plain: PlainRows
) -> None:
    async with connect(tables) as ours:
        with heard(tables) as notices:
            for lease in LEASES:
                await (await row(ours, lease).write()).release()
            assert not notifications(notices)
    assert plain.state() == ("Unlock", 0)


async def test_the_published_program_notifies_nobody(
    tables: str, plain: PlainRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the notification wakes the waiter, and nothing else does."""
    rings: list[int] = []
    monkeypatch.setattr(acquirer.RowWaiters, "wake", lambda _: rings.append(1))
    assert plain.step("WLock")
    async with connect(tables) as ours, anyio.create_task_group() as group:
        group.start_soon(take, row(ours), "write")
        await wait_until(lambda: has(rings, 1), PATIENCE)  # it is there
        assert plain.step("WUnlock")
        await anyio.sleep(SHORT)
        assert len(rings) == 1
        group.cancel_scope.cancel()


async def test_a_lost_connection_comes_again_and_looks(
    tables: str, plain: PlainRows
) -> None:
    async with somebody_waits(tables, plain) as held:
        with psycopg.connect(tables, autocommit=True) as admin:
            ((pid,),) = admin.execute(ATTENDING)
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        await held.release()  # whether anybody is there just now or not


async def test_numbers_that_somebody_has_locked_are_had_later(
    tables: str, plain: PlainRows
) -> None:
    async with connect(tables) as ours, connect(tables) as theirs:
        held = await row(theirs).write()
        with psycopg.connect(tables) as stranger:
            stranger.execute(
                "SELECT pg_advisory_xact_lock("
                " CAST('invoices'::regclass AS oid)::int4, hashtext('rwlock 1'))"
            )
            async with anyio.create_task_group() as group:
                group.start_soon(take, row(ours), "write")
                await anyio.sleep(SHORT)
                stranger.rollback()
                await wait_until(lambda: attended(plain, 1), PATIENCE)
                await held.release()


async def test_a_cancelled_waiter_is_not_waited_for(
    tables: str, plain: PlainRows
) -> None:
    async with connect(tables) as ours, connect(tables) as theirs:
        held = await row(theirs).write()
        async with anyio.create_task_group() as group:
            group.start_soon(take, row(ours), "write")
            await wait_until(lambda: attended(plain, 1), PATIENCE)
            group.cancel_scope.cancel()
        await wait_until(lambda: attended(plain, 0), PATIENCE)
        await held.release()


@asynccontextmanager
async def somebody_waits(
    tables: str, plain: PlainRows, mode: str = "write", lease: float | None = None
) -> AsyncIterator[RowHeld]:
    """For what this gives; has come in at the end, and waits no more."""
    async with connect(tables) as ours, connect(tables) as theirs:
        held = await row(theirs, lease).write()
        async with anyio.create_task_group() as group:
            group.start_soon(take, row(ours, lease), mode)
            await wait_until(lambda: attended(plain), PATIENCE)
            yield held
        await wait_until(lambda: attended(plain, 0), PATIENCE)


def row(locks: Locks, lease: float | None = None, key: int = 1) -> RowLock:
    return locks.row_lock("invoices", key, lease=lease)


async def take(lock: RowLock, mode: str, got: list[int] | None = None) -> None:
    with anyio.fail_after(PATIENCE):
        async with ask(lock, mode)():
            if got is not None:
                got.append(1)


async def has(got: list[int], number: int) -> bool:
    return len(got) == number


def heard(url: str) -> psycopg.Connection:
    """Whoever else listens."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("LISTEN rwlock_rows")
    return connection


def notifications(connection: psycopg.Connection) -> list[str]:
    return [notice.payload for notice in connection.notifies(timeout=SHORT)]
