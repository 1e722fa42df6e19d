"""Doormen that nobody uses any more, of which there may be very many."""

from __future__ import annotations

from functools import partial

import anyio
import oracledb
import pytest

from aiorwlock_remote._util.purge import FIRST_KEY
from aiorwlock_remote.backends.oracle import store as oracle
from aiorwlock_remote.core.commands import Granted
from tests.backends.oracle.programs import run
from tests.backends.redis.connections import eventually
from tests.cas.tables import acquire, forgets_all, often, opened, orders
from tests.servers.oracle.client import OracleUser

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("asyncio does it"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]

OLD = (
    "INSERT INTO doormans (resource_type, resource_id, active_readers,"
    " has_pending_writer, updated_at, created_at)"
    " SELECT 'order', :n, '{}', 0, t.at, t.at FROM (SELECT"
    " SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(7200, 'SECOND') AS at"
    " FROM dual) t"
)
USED = (
    "UPDATE doormans SET updated_at = SYS_EXTRACT_UTC(SYSTIMESTAMP)"
    " WHERE resource_id = 2"
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "ROWS_PER_REQUEST", 3)


def make_old(user: OracleUser, count: int) -> None:
    with oracledb.connect(**user.login) as connection:
        with connection.cursor() as cursor:
            cursor.executemany(OLD, [{"n": n + 1} for n in range(count)])
        connection.commit()


def left(user: OracleUser) -> list[int]:
    rows = run(user, "SELECT resource_id FROM doormans ORDER BY resource_id")
    return [row[0] for row in rows]


async def test_a_portion_at_a_time(user: OracleUser) -> None:
    """Wherever they are; there are more as long as a portion was full."""
    make_old(user, 8)
    async with opened(user.url) as store:
        assert isinstance(await store.step(orders(3)[2], acquire("t")), Granted)
        assert await store.forget(99) == FIRST_KEY
        assert len(left(user)) == 5
        assert await store.forget(99) == FIRST_KEY
        assert len(left(user)) == 2
        assert await store.forget(99) is None
        assert left(user) == [2]


async def test_a_doorman_used_just_before_the_purge_is_kept(user: OracleUser) -> None:
    """Who has to wait for a row finds it changed, and leaves it."""
    make_old(user, 3)
    async with opened(user.url) as store:
        with oracledb.connect(**user.login) as step, step.cursor() as cursor:
            cursor.execute(USED)
            async with anyio.create_task_group() as group:
                group.start_soon(store.forget, 99)
                await eventually(lambda: len(user.waiting()) > 0, "waits for the row")
                step.commit()
    assert left(user) == [2]


async def test_all_old_doormen_are_purged_in_time(
    user: OracleUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    make_old(user, 30)
    await forgets_all(user.url, partial(left, user))
