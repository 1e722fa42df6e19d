"""Where objects are occupied in tests: each store opened, looked at, upset alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Protocol

import redis

from aiorwlock_remote import connect
from aiorwlock_remote.recipes import Occupancy, folder_occupancy

BOOK = ("book", 42)
NAME = "book:42"
Opened = AbstractAsyncContextManager[Occupancy]


class Place(Protocol):
    """A store. ``spec`` is what another process opens it with."""

    spec: str

    def open(self, **ages: float | None) -> Opened:
        """Over connections of its own."""

    def records(self) -> tuple[list[str], list[str]]:
        """Who is pending at the book, and who uses it."""

    def plant(self, status: str, who: str) -> None:
        """As another program writes it."""

    def erase(self) -> None:
        """As an operator would."""


class RedisPlace:
    def __init__(self, url: str) -> None:
        self.spec = f"redis {url}"
        self._url = url

    @asynccontextmanager
    async def open(self, **ages: float | None) -> AsyncIterator[Occupancy]:
        async with connect(self._url) as locks:
            yield locks.occupancy(**ages)  # type: ignore[arg-type]

    def records(self) -> tuple[list[str], list[str]]:
        with closing(self._client()) as client:
            pendings: Any = client.smembers(f"pending:{NAME}")
            using: Any = client.get(f"using:{NAME}")
            return sorted(pendings), [] if using is None else [using]

    def plant(self, status: str, who: str) -> None:
        with closing(self._client()) as client:
            if status == "pending":
                client.sadd(f"pending:{NAME}", who)
            else:
                client.set(f"using:{NAME}", who)

    def erase(self) -> None:
        with closing(self._client()) as client:
            client.delete(f"pending:{NAME}", f"using:{NAME}")

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self._url, decode_responses=True)


class FolderPlace:
    def __init__(self, folder: str) -> None:
        self.spec = f"folder {folder}"
        self._folder = Path(folder)

    @asynccontextmanager
    async def open(self, **ages: float | None) -> AsyncIterator[Occupancy]:
        yield folder_occupancy.occupancy(self._folder, **ages)  # type: ignore[arg-type]

    def records(self) -> tuple[list[str], list[str]]:
        found = [
            sorted(path.name for path in (self._folder / NAME / part).glob("*"))
            for part in ("pending", "using")
        ]
        return found[0], found[1]

    def plant(self, status: str, who: str) -> None:
        for part in ("pending", "using"):
            (self._folder / NAME / part).mkdir(parents=True, exist_ok=True)
        (self._folder / NAME / status / who).touch()

    def erase(self) -> None:
        for path in (self._folder / NAME).glob("*/*"):
            path.unlink()


def place_of(spec: str) -> Place:
    """The place of another process, which needs no library but that one's."""
    kind, _, where = spec.partition(" ")
    if kind == "redis":
        return RedisPlace(where)
    if kind == "folder":
        return FolderPlace(where)
    from tests.recipes import occupied_tables  # noqa: PLC0415 - slow, and not for all

    place: Place = occupied_tables.KINDS[kind](where)
    return place
