"""The harness of ``file://``."""

from __future__ import annotations

from pathlib import Path

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import (
    ForeignClient,
    Harness,
    Name,
    StoreLocation,
)
from tests.conformance.stores.sqlite import SqliteHarness


class FileHarness(Harness):
    """``file:///``, a directory for each test."""

    capabilities = SqliteHarness.capabilities & ~Capability.ROW_LOCKS
    has_foreigner = True

    def fresh(self, folder: Path) -> StoreLocation:
        """Return a directory of its own."""
        place = folder / "locks"  # some tests keep other files beside it
        place.mkdir()
        return StoreLocation(place.as_uri(), foreigner=PlainFiles(place))


class PlainFiles(ForeignClient):
    """What a shell script does: ``set -o noclobber; echo TICKET > type,id.lock``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, name: Name, ticket: str) -> bool:
        try:
            with self._path(name).open("x") as file:
                file.write(f"{ticket}\n")
        except FileExistsError:
            return False
        return True

    def put(self, name: Name, ticket: str) -> None:
        self._path(name).write_text(f"{ticket}\n")

    def free(self, name: Name, ticket: str) -> bool:
        if self.read(name) != ticket:
            return False
        self._path(name).unlink()
        return True

    def clean(self, name: Name) -> None:
        self._path(name).with_suffix(".doorman").unlink()

    def read(self, name: Name) -> str | None:
        try:
            return self._path(name).read_text().removesuffix("\n")
        except FileNotFoundError:
            return None

    def _path(self, name: Name) -> Path:
        kind, number = name
        return self._folder / f"{kind},{number}.lock"
