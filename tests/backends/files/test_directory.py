"""Directories that cannot be used: said with what to do, and left as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiorwlock_remote import (
    BadRecord,
    ConfigurationError,
    LockError,
    Unsupported,
    connect,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
# ruff: noqa: ASYNC240 - looking at a temporary folder blocks nobody


async def refused(url: str, error: type[LockError]) -> str:
    """The message of what opening this store raises."""
    with pytest.raises(error) as caught:
        await connect(url, connect_timeout=0.5)
    return str(caught.value)


async def test_a_missing_directory(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    said = await refused(place.as_uri(), ConfigurationError)
    assert f"mkdir -p {place}" in said
    assert "create=yes" in said
    assert list(tmp_path.iterdir()) == []


async def test_made_if_wanted(tmp_path: Path) -> None:
    place = tmp_path / "a b" / "c"
    async with connect(f"{place.as_uri()}?create=yes") as locks, locks.mutex("a", 1):
        assert (place / "a,1.lock").exists()


@pytest.mark.parametrize("option", ["", "?create=yes"])
@pytest.mark.parametrize("below", ["", "/more"])
async def test_a_file_in_its_place(tmp_path: Path, option: str, below: str) -> None:
    place = tmp_path / "file"
    place.write_text("mine")
    said = await refused(f"{place.as_uri()}{below}{option}", ConfigurationError)
    assert "is not a directory" in said
    assert place.read_text() == "mine"


async def test_other_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").touch()
    said = await refused(tmp_path.as_uri(), ConfigurationError)
    assert "directory of their own" in said
    assert [path.name for path in tmp_path.iterdir()] == ["report.pdf"]


async def test_its_mark_was_removed(tmp_path: Path) -> None:
    """As what sweeps /tmp does: by which clock the records count is not known."""
    async with connect(tmp_path.as_uri()) as locks, locks.mutex("order", 42):
        pass
    (tmp_path / ".rwlock").unlink()
    said = await refused(tmp_path.as_uri(), BadRecord)
    assert ".rwlock" in said
    assert "*.doorman" in said
    assert not (tmp_path / ".rwlock").exists()


@pytest.mark.parametrize(
    "url",
    ["file://", "file:///", "file://dir", "file://host/dir"],
)
async def test_urls_without_a_directory(url: str) -> None:
    assert "file:///var/lib/locks" in await refused(url, ConfigurationError)


@pytest.mark.parametrize("option", ["shared=1", "sync=", "create=true", "speed=warp"])
async def test_invalid_options(tmp_path: Path, option: str) -> None:
    said = await refused(f"{tmp_path.as_uri()}?{option}", ConfigurationError)
    assert option.partition("=")[0] in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("first", ["yes", "no"])
async def test_all_clients_must_agree_on_other_hosts(
    tmp_path: Path, first: str
) -> None:
    other = {"yes": "no", "no": "yes"}[first]
    async with connect(f"{tmp_path.as_uri()}?shared={first}"):
        pass
    said = await refused(f"{tmp_path.as_uri()}?shared={other}", ConfigurationError)
    assert "all programs must say the same" in said


@pytest.mark.parametrize(
    ("mark", "word"),
    [
        ("nonsense", "damaged"),
        ("[1]", "damaged"),
        ('{"v":2,"clock":"boot"}', "version"),
    ],
)
async def test_marked_by_somebody_else(tmp_path: Path, mark: str, word: str) -> None:
    (tmp_path / ".rwlock").write_text(mark)
    assert word in await refused(tmp_path.as_uri(), BadRecord)


async def test_read_only_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    flags = os.statvfs(tmp_path)
    mount = os.statvfs_result((*flags[:8], os.ST_RDONLY, flags[9]))
    monkeypatch.setattr(os, "statvfs", lambda _: mount)
    assert "read-only" in await refused(tmp_path.as_uri(), Unsupported)
