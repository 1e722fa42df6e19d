"""Leased rows whose event loop is blocked: they are renewed in another thread."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.core.row import RowState
from aiorwlock_remote.core.row_grants import RowGrant, load_row_grants
from tests.recipes.fix_rows import LocksSite, oracle_site
from tests.recipes.row_sites import FREE, LOCKED, MODES, PATIENCE, RowSite, ask
from tests.servers.oracle.client import OracleUser

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the renewals run in a loop of their own"),
]

LEASE = 1.5
LEASES_BLOCKED = 2.5


@pytest.fixture
def oracle(oracle_user: OracleUser) -> Iterator[LocksSite]:
    with oracle_site(oracle_user.at("19c")) as site:
        yield site


def stored_grant(site: RowSite) -> RowGrant:
    """Read the one grant in row 1, as another process does; no event loop is needed."""
    ((mark, readers, reason, text),) = site.plain.rows(
        "SELECT lock_mark, read_lock_count, lock_reason, lock_grants"
        " FROM invoices WHERE id = 1"
    )
    stored = load_row_grants(RowState(mark, int(readers), str(reason)), text)
    assert stored is not None
    (grant,) = stored.grants
    return grant


def block_until_renewed(site: LocksSite, until: int) -> None:
    """Block the caller, and its loop, until the stored lease ends after ``until``."""
    last_chance = time.monotonic() + PATIENCE
    while stored_grant(site).expires <= until:
        assert time.monotonic() < last_chance, "the row was not renewed"
        time.sleep(LEASE / 20)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb", "mysql", "oracle"])
async def test_a_blocked_loop_keeps_its_row(
    name: str, mode: str, request: pytest.FixtureRequest
) -> None:
    site: LocksSite = request.getfixturevalue(name)
    async with connect(site.url) as locks:
        async with ask(locks.row_lock("invoices", 1, lease=LEASE), mode)() as held:
            begun = stored_grant(site)
            blocked_for = round(LEASES_BLOCKED * LEASE * 1_000_000)
            block_until_renewed(site, begun.expires + blocked_for)
            held.check()
            await anyio.lowlevel.checkpoint()  # a loss would cancel the body here
            assert site.plain.state() == LOCKED[mode]
            assert stored_grant(site).fence == held.fence == begun.fence
        assert site.plain.state() == FREE
