"""Row locks whose lease is over, or whose grant is gone: the holder gets ``LockLost``.

How a loss cancels a body, and which error wins, is tested in tests/runtime/test_loss.py
for all grants.
"""

from __future__ import annotations

import pytest

from aiorwlock_remote import LockLost
from aiorwlock_remote.locks.held import state_of
from tests.backends.redis.connections import eventually
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, MODES, ask, opened

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no socket has a part in it"),
]


@pytest.fixture
def leased(sqlite: LocksSite) -> LocksSite:
    sqlite.lease = 30.0
    return sqlite


@pytest.mark.parametrize("mode", MODES)
async def test_a_release_after_the_deadline(leased: LocksSite, mode: str) -> None:
    """The row is released all the same, although no other program has come since."""
    async with opened(leased) as lock_of:
        held = await ask(lock_of(1), mode)()
        state_of(held).lease.deadline = 0.0
        with pytest.raises(LockLost, match="lost: expired"):
            await held.release()
        assert held.lost == "expired"
        assert not held.valid
        await eventually(lambda: leased.plain.state() == FREE, "released")


async def test_a_grant_that_was_purged_is_lost(leased: LocksSite) -> None:
    """The row stands, without it: that is no row that was deleted."""
    async with opened(leased) as lock_of:
        held = await lock_of(1).write()
        leased.plain.run("UPDATE invoices SET lock_grants = NULL, lock_mark = 'Unlock'")
        with pytest.raises(LockLost, match="lost: forced"):
            await held.release()
