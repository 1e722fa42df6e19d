"""One store, looked at again and again, and what may become of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.cli.watch.command import FileScanner
from tests.cli.fix_cli import Store
from tests.conformance.stores.files import PlainFiles
from tests.conformance.stores.sqlite import PlainSqlite

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=["sqlite", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Locks in a folder of their own, with a grant that never ends."""
    folder = tmp_path / "there"
    folder.mkdir()
    if request.param == "sqlite":
        path = folder / "locks.db"
        return Store(f"sqlite:///{path}", PlainSqlite(path))
    return Store(folder.as_uri(), PlainFiles(folder))


async def seen(scanner: FileScanner) -> list[str]:
    return [one.target.label for one in await scanner.scan()]


@pytest.fixture
def left(place: Store) -> Store:
    place.leave_behind("order", "2", "b")
    place.leave_behind("order", "1", "a")
    place.leave_behind("other", "1", "c")
    return place


async def test_the_scanner_sees_what_ls_lists(left: Store) -> None:
    async with (
        FileScanner(left.url, None) as scanner,
        FileScanner(left.url, "order") as orders,
    ):
        assert await seen(scanner) == ["order/1", "order/2", "other/1"]
        assert await seen(orders) == ["order/1", "order/2"]
        assert await seen(orders) == ["order/1", "order/2"]


async def test_a_store_that_is_put_away_and_back(left: Store, tmp_path: Path) -> None:
    async with FileScanner(left.url, "order") as scanner:
        assert len(await seen(scanner)) == 2
        (tmp_path / "there").rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="does not exist"):
                await scanner.scan()
        assert not (tmp_path / "there").exists()
        (tmp_path / "away").rename(tmp_path / "there")
        assert len(await seen(scanner)) == 2


async def test_a_store_put_in_place_of_another_is_what_is_seen(
    left: Store, tmp_path: Path
) -> None:
    async with FileScanner(left.url, None) as scanner:
        assert len(await seen(scanner)) == 3
        (tmp_path / "there").rename(tmp_path / "away")
        (tmp_path / "there").mkdir()
        if left.url.startswith("sqlite"):
            (tmp_path / "there" / "locks.db").touch()
        with pytest.raises(ConfigurationError, match="is empty"):
            await scanner.scan()
        async with connect(left.url) as locks:
            assert not await locks.mutex("order", 1).locked()
        assert await seen(scanner) == []
