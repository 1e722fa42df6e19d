"""A process that ends without closing its locks: what it sent before is carried out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aiorwlock_remote import connect

LEAVE = """
import sys, anyio
from aiorwlock_remote import connect
from aiorwlock_remote.backends.sqlite.store import SqliteConnection as Sqlite
from aiorwlock_remote.backends.files.store import FilesConnection as Files

entered = False

def slowly(steps):
    def slow(*args):
        if entered:
            time.sleep(0.1)  # a disk may take as long
        return steps(*args)
    return slow

import time
for kind in (Sqlite, Files):
    kind.steps = slowly(kind.steps)

async def main(url):
    global entered
    locks = await connect(url)
    async with locks.mutex("order", 1):
        entered = True
        sys.exit(4)

anyio.run(main, sys.argv[1], backend=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_block_is_left_by_sys_exit(
    tmp_path: Path, scheme: str, anyio_backend_name: str
) -> None:
    place = tmp_path / "locks"
    if scheme == "file":
        place.mkdir()
    url = f"{scheme}:///{place}"
    done = subprocess.run(  # noqa: ASYNC221 - nothing else is to happen meanwhile
        [sys.executable, "-c", LEAVE, url, anyio_backend_name], check=False
    )
    assert done.returncode == 4
    async with connect(url) as locks:
        assert not await locks.mutex("order", 1).locked()
