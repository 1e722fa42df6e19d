"""Names that nobody uses do not stay, however short the lives of their users."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.embedded import store

pytestmark = pytest.mark.anyio

LIVES = 40


def in_database(folder: Path) -> set[str]:
    with closing(sqlite3.connect(folder / "locks.db")) as db:
        return {kind for (kind,) in db.execute("SELECT resource_type FROM doormans")}


def in_files(folder: Path) -> set[str]:
    paths = [str(path) for path in folder.rglob("*")]
    return {name for name in ("first", "second") if any(name in p for p in paths)}


@pytest.mark.parametrize(
    ("url", "names"),
    [("sqlite:///{}/locks.db", in_database), ("file://{}", in_files)],
)
async def test_of_processes_that_end_soon(
    tmp_path: Path, url: str, names: Callable[[Path], set[str]]
) -> None:
    url = url.format(tmp_path)
    async with connect(url) as locks, locks.mutex("first", 1):
        assert "first" in names(tmp_path)
    await anyio.sleep(1.1)  # a database counts in whole seconds
    with patch.object(store, "PURGE_EVERY", 4):
        for _ in range(LIVES):
            locks = await connect(url, fence_memory=0.001)
            async with locks.mutex("second", 1):
                pass
            await locks.aclose()
    assert "first" not in names(tmp_path)
