"""Programs that move to another store, while those of the release before still run.

Release 0 knows the old store, release 2 the new one. Release 1 holds the lock in both,
first with the fences of the old store, then with those of the new one.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.testing.checker import Verdict, check_history
from tests.faults.workers import WorkerPool
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

RELEASES = {
    "old only": "old",
    "both, fences of the old": "both old",
    "both, fences of the new": "both new",
    "new only": "new",
}
"""In the order in which they are rolled out."""

OLD, OLD_FENCES, NEW_FENCES, NEW = RELEASES
TASKS, TURNS = 10, 5


@pytest.fixture(params=["sqlite to files", "redis to postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URLs of the old store and the new one."""
    if request.param == "sqlite to files":
        (tmp_path / "locks").mkdir()
        return f"sqlite:///{tmp_path}/locks.db", (tmp_path / "locks").as_uri()
    server: RedisServer = request.getfixturevalue("fresh_redis")
    tables: str = request.getfixturevalue("tables")
    return server.url, tables


def start(
    pool: WorkerPool,
    stores: tuple[str, str],
    release: str,
    loop: str,
    writes: float,
) -> None:
    old, new = stores
    plan: dict[str, float | str] = {"tasks": TASKS, "turns": TURNS, "lease": 30}
    plan["writes"] = writes
    match RELEASES[release].split():
        case ["both", fence]:
            pool.start(old, new=new, fence=fence, loop=loop, **plan)
        case [only]:
            pool.start(old if only == "old" else new, loop=loop, **plan)


def run(
    folder: Path, stores: tuple[str, str], *releases: str, writes: float = 0.4
) -> Verdict:
    """Two processes of each release at once; ``writes``: the share of writers."""
    histories = folder / "histories"
    histories.mkdir()
    with WorkerPool("", histories) as pool:
        pool.halt()  # until all have started
        for release in releases:
            for loop in ("asyncio", "trio"):
                start(pool, stores, release, loop, writes)
        pool.go_on()
        pool.join()
        return check_history(pool.history())


async def held(url: str) -> list[str]:
    """Who holds or waits for anything."""
    async with connect(url) as locks:
        return [repr(seen) async for seen in locks.list()]


@pytest.mark.parametrize(
    ("releases", "writes"),
    [
        ((OLD, OLD_FENCES), 0.4),
        ((OLD_FENCES, NEW_FENCES), 1.0),
        ((NEW_FENCES, NEW), 0.4),
    ],
    ids=["0 and 1", "1 and 1b", "1b and 2"],
)
def test_a_release_excludes_the_one_before(
    releases: tuple[str, str], writes: float, stores: tuple[str, str], tmp_path: Path
) -> None:
    """No overlap; fences rise, so that what is protected refuses nobody.

    Where the fences change, that holds for writers, as the two clocks are one.
    """
    verdict = run(tmp_path, stores, *releases, writes=writes)
    assert verdict.violations == ()
    assert (verdict.grants, verdict.refused) == (4 * TASKS * TURNS, 0)
    for url in stores:
        assert anyio.run(held, url) == []


def test_without_a_release_between_they_do_not_exclude_each_other(
    stores: tuple[str, str], tmp_path: Path
) -> None:
    """The control: both stores are right, and there are two holders."""
    verdict = run(tmp_path, stores, OLD, NEW)
    assert "exclusion" in {violation.kind for violation in verdict.violations}
