"""Row locks whose lease is over: the holder is told, though nobody else came."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, LockLost
from aiorwlock_remote.recipes import RowHeld
from aiorwlock_remote.recipes.row_lock.manager import RowLease
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, MODES, ask, opened

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no socket has a part in it"),
]


def holding_of(held: RowHeld) -> RowLease[object]:
    return held._lease


def over(held: RowHeld) -> None:
    """Its lease, as after a blocked loop; nobody else has come."""
    holding_of(held).deadline = 0.0


@pytest.fixture
def leased(sqlite: LocksSite) -> LocksSite:
    sqlite.lease = 30.0
    return sqlite


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_that_was_cancelled(leased: LocksSite, mode: str) -> None:
    async with opened(leased) as lock_of:
        with pytest.raises(LockLost) as told:
            async with ask(lock_of(1), mode)() as held:
                holding_of(held).lose("unreachable")
                await anyio.sleep_forever()
        assert (told.value.reason, told.value.mode) == ("unreachable", mode)
        assert told.value.fence == held.fence
    assert leased.plain.state() == FREE


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_that_awaits_nothing(leased: LocksSite, mode: str) -> None:
    async with opened(leased) as lock_of:
        with pytest.raises(LockLost) as told:
            async with ask(lock_of(1), mode)() as held:
                over(held)
        assert told.value.reason == "expired"
        with pytest.raises(ZeroDivisionError):  # the body's own error goes first
            async with ask(lock_of(1), mode)() as held:
                over(held)
                raise ZeroDivisionError
    assert leased.plain.state() == FREE


@pytest.mark.parametrize("mode", MODES)
async def test_by_hand(leased: LocksSite, mode: str) -> None:
    async with opened(leased) as lock_of:
        held = await ask(lock_of(1), mode)()
        over(held)
        with pytest.raises(LockLost, match="lost: expired"):
            await held.release()
    assert leased.plain.state() == FREE


async def test_at_a_database_that_is_gone(
    leased: LocksSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it could say would change that."""

    async def away(*_: object) -> None:
        raise BackendUnavailable(what="away")

    async with opened(leased) as lock_of:
        held = await lock_of(1).write()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(held._manager, "release", away)
            with pytest.raises(BackendUnavailable):
                await held.release()
            over(held)
            with pytest.raises(LockLost) as told:
                await held.release()
        assert isinstance(told.value.__cause__, BackendUnavailable)
        with pytest.raises(LockLost):
            await held.release()


async def test_a_grant_that_was_purged_is_lost(leased: LocksSite) -> None:
    """The row stands, without it: that is no row that was deleted."""
    async with opened(leased) as lock_of:
        held = await lock_of(1).write()
        leased.plain.run("UPDATE invoices SET lock_grants = NULL, lock_mark = 'Unlock'")
        with pytest.raises(LockLost, match="lost: forced"):
            await held.release()
