"""Two versions of this library at work on one store, as in a rolling upgrade.

The other version is a copy of this one in another folder. As 0.1.1 it writes fields
that this version does not know; as a version of another layout it writes another ``v``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest

import aiorwlock_remote
from aiorwlock_remote import BadRecord, connect
from aiorwlock_remote.cli.exit_codes import UNAVAILABLE
from aiorwlock_remote.core.doorman import Extra
from aiorwlock_remote.locks.lock import parts_of
from aiorwlock_remote.testing.checker import check_history
from tests.faults.workers import ROOT, WorkerPool
from tests.servers.redis import RedisServer, talk

pytestmark = pytest.mark.slow

Changes = Mapping[str, Sequence[tuple[str, str]]]
"""By file of the package: texts of this version, and what the other one has."""

NEXT_PATCH: Changes = {
    "__init__.py": [(r'(?<=__version__ = ")[^"]+', "0.1.1")],
    "core/codec.py": [
        (r'"lock_delay", "limit"\),', r'"lock_delay", "limit", "hue"),'),
        (r'\*\("v", "grants",', '*("news", "v", "grants",'),
        (r'"who":{_who\(grant.who\)}', r'\g<0>,"hue":"red"'),
        (r'"grants":\[{grants}\],"queue"', r'"news":["0.1.1"],\g<0>'),
    ],
    "backends/redis/lua/save.lua": [
        (
            r"pairs_of\[#pairs_of \+ 1\] = now_text",
            r"""\g<0>
  pairs_of[#pairs_of + 1] = 'news'
  pairs_of[#pairs_of + 1] = '0.1.1'""",
        )
    ],
}
_V = r"(?<=stored\[1\] [~=]= ')1(?=')"
NEXT_LAYOUT: Changes = {
    "core/codec.py": [(r"(?<=^VERSION = )1$", "2")],
    "backends/redis/snapshots.py": [(r'(?<=^VERSION = ")1', "2")],
    "backends/redis/lua/fast.lua": [(_V, "2")],
    "backends/redis/lua/record.lua": [(_V, "2")],
    "backends/redis/lua/save.lua": [(_V, "2"), (r"(?<=differ\(1, 'v', ')1", "2")],
}


def other_version(folder: Path, changes: Changes) -> Path:
    """A folder with a copy of the package, changed, and with the tests."""
    package = folder / "aiorwlock_remote"
    here = Path(aiorwlock_remote.__file__).parent
    shutil.copytree(here, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, pairs in changes.items():
        text = (package / name).read_text("utf-8")
        for old, new in pairs:
            text, count = re.subn(old, new, text, flags=re.MULTILINE)
            assert count == 1, f"{name} has {count} times {old}"
        (package / name).write_text(text, "utf-8")
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


@pytest.fixture(params=["sqlite", "files", "redis", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("fresh_redis")
        return server.url
    if request.param == "postgresql":
        tables: str = request.getfixturevalue("tables")
        return tables
    folder = tmp_path / "store"
    folder.mkdir()
    return f"sqlite:///{folder}/l.db" if request.param == "sqlite" else folder.as_uri()


async def fields_of_other_versions(url: str, kind: str, name: int) -> Extra:
    """What this version keeps in the record without knowing it, after a grant."""
    async with connect(url) as locks:
        lock = locks.mutex(kind, name)
        async with lock:
            pass
        session, request, _ = parts_of(lock)
        look = partial(session.client.store.look, request.resource)
        return (await session.client.answer(look)).record.extra


def test_two_patch_versions_share_a_store(url: str, tmp_path: Path) -> None:
    """They exclude each other under load, wake each other, and keep what they read."""
    newer = other_version(tmp_path / "newer", NEXT_PATCH)
    histories = tmp_path / "histories"
    histories.mkdir()
    plan: dict[str, float] = {"tasks": 10, "turns": 5, "lease": 30}
    with WorkerPool(url, histories) as pool:
        pool.halt()  # until all have started
        for loop in ("asyncio", "trio"):
            pool.start(loop=loop, **plan)
            pool.start(None, ("env", "-C", str(newer)), loop=loop, **plan)
        pool.go_on()
        pool.join()
        verdict = check_history(pool.history())
    assert verdict.violations == ()
    assert (verdict.grants, verdict.refused) == (4 * 10 * 5, 0)
    kept = dict(anyio.run(fields_of_other_versions, url, "shared", 1))
    assert kept["news"] in ("0.1.1", ["0.1.1"])


def run_in(folder: Path, url: str, name: str) -> subprocess.CompletedProcess[str]:
    """Take a lock with the version in that folder, and run a command under it."""
    command = ["run", "--url", url, "--timeout", "20", name, "--", "true"]
    return subprocess.run(
        [sys.executable, "-m", "aiorwlock_remote", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_other_version_runs(tmp_path: Path) -> None:
    newer = other_version(tmp_path / "newer", NEXT_PATCH)
    shown = subprocess.run(
        [sys.executable, "-m", "aiorwlock_remote", "--version"],
        cwd=newer,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0.1.1" in shown.stdout


async def refused(url: str, *names: str) -> None:
    """This version refuses these, and only these."""
    async with connect(url) as locks:
        for name in names:
            lock = locks.mutex("order", name)
            for attempt in (lock.acquire(timeout=20), lock.try_acquire(), lock.info()):
                with pytest.raises(BadRecord, match=r"unknown version.*upgrade"):
                    await attempt
        async with locks.mutex("order", "other").acquire(timeout=0):
            pass


def test_versions_of_two_layouts_refuse_each_other(url: str, tmp_path: Path) -> None:
    """Neither joins what it does not understand, and neither changes it."""
    newer = other_version(tmp_path / "newer", NEXT_LAYOUT)
    assert run_in(newer, url, "order/1").returncode == 0
    anyio.run(refused, url, "1")
    assert run_in(newer, url, "order/1").returncode == 0
    assert run_in(ROOT, url, "order/2").returncode == 0
    late = run_in(newer, url, "order/2")
    assert late.returncode == UNAVAILABLE
    assert "unknown version" in late.stderr
    assert run_in(ROOT, url, "order/2").returncode == 0


def test_a_holder_is_safe_from_another_layout(url: str, tmp_path: Path) -> None:
    newer = other_version(tmp_path / "newer", NEXT_LAYOUT)

    async def hold() -> None:
        async with connect(url) as locks, locks.mutex("order", 3) as held:
            late = await anyio.to_thread.run_sync(run_in, newer, url, "order/3")
            assert late.returncode == UNAVAILABLE
            await held.extend()

    anyio.run(hold)


def empty(url: str, folder: Path) -> None:
    """Delete the library's records, while no process uses them."""
    scheme = url.partition(":")[0]
    if scheme == "redis":
        port = int(url.rpartition(":")[2].partition("/")[0])
        (keys,) = talk(port, ("KEYS", "*mutex_locks/*"))
        talk(port, ("DEL", *keys))
    elif scheme == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM doormans")
            connection.execute("DELETE FROM mutex_locks")
    else:
        for path in folder.iterdir():
            path.unlink()


def test_going_back_from_another_layout(url: str, tmp_path: Path) -> None:
    """Stop, delete the records, start. Fences rise all the same, by the clock."""
    fences: list[int] = []

    async def take() -> None:
        async with connect(url) as locks, locks.mutex("order", 1) as held:
            fences.append(held.fence)

    newer = other_version(tmp_path / "newer", NEXT_LAYOUT)
    anyio.run(take)
    empty(url, tmp_path / "store")
    assert run_in(newer, url, "order/1").returncode == 0
    anyio.run(refused, url, "1")
    empty(url, tmp_path / "store")
    anyio.run(take)
    assert fences == sorted(set(fences))
