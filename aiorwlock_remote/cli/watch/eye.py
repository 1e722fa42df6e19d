"""Looks at one store, over one connection for as long as it is the same store."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Self, final

from aiorwlock_remote import Doorman, Locks, connect
from aiorwlock_remote.cli.format import resource_of
from aiorwlock_remote.cli.options import path_of, store
from aiorwlock_remote.core.url import parse

if TYPE_CHECKING:
    from types import TracebackType


@final
class Eye:
    """One scan a look; changes nothing."""

    def __init__(self, url: str, resource_type: str | None) -> None:
        """``url`` is looked at when the first look is asked for."""
        self._url = url
        self._type = resource_type
        self._locks: Locks | None = None
        self._place: object = None

    async def look(self) -> list[Doorman]:
        """As `rwlock ls` lists them.

        Raises:
            ConfigurationError: there is no such store, or type.
            BackendError: it does not answer.
        """
        # A file that was put in place of another is another store: who has the old one
        # open would see that one for ever. Nor is a file that is gone made anew.
        place = _place(store(self._url, used=True))
        if place != self._place:
            await self.aclose()
        if self._locks is None:
            self._locks, self._place = await connect(self._url), place
        async with aclosing(self._locks.list(self._type)) as listed:
            return sorted([seen async for seen in listed], key=resource_of)

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        locks, self._locks = self._locks, None
        if locks is not None:
            await locks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _place(url: str) -> object:
    """What tells the file from another of that name; None: a server."""
    path = path_of(parse(url))
    if path is None:
        return None
    there = path.stat()
    return there.st_dev, there.st_ino
