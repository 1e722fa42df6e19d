"""Databases with a table to lock rows of, and the ways in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import pytest

from aiorwlock_remote.recipes import RowAcquisition, RowHeld, RowLock
from aiorwlock_remote.recipes.row_lock import acquirer
from tests.servers.plain_rows import PlainRows

FREE = ("Unlock", 0)
PATIENCE = 30.0
NEVER = 600.0
MODES = ("read", "write")
LOCKED = {"read": ("ReadLock", 1), "write": ("WriteLock", 0)}
THEIRS = {"read": ("RLock", "RUnlock"), "write": ("WLock", "WUnlock")}

ATTENDING = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Connections of PostgreSQL that listen for somebody who waits for a row."""


class LockOf(Protocol):
    """Locks of one ``Locks``, or of whatever else is a way in."""

    def __call__(self, key: int, table: str = "invoices") -> RowLock:
        """The lock of that row."""


class RowSite(ABC):
    """A database with the table, and our way in; ``lease``: of its locks."""

    def __init__(self, plain: PlainRows, url: str) -> None:
        self.plain = plain
        self.url = url
        self.lease: float | None = None

    @abstractmethod
    def open(self) -> AsyncIterator[LockOf]:
        """A context, closed afterwards."""


def site_of(fixture: str, lease: float | None = None) -> Any:  # noqa: ANN401
    """Return a suite's fixture ``site``: what that other fixture gives."""

    @pytest.fixture
    def site(self: object, request: pytest.FixtureRequest) -> RowSite:
        del self
        found: RowSite = request.getfixturevalue(fixture)
        found.lease = lease
        return found

    return site


@asynccontextmanager
async def opened(site: RowSite) -> AsyncIterator[LockOf]:
    """What the site opens, closed in time."""
    context = asynccontextmanager(site.open)()
    yielded = await context.__aenter__()
    try:
        yield yielded
    finally:
        with anyio.fail_after(PATIENCE, shield=True):
            await context.__aexit__(None, None, None)


def ask(lock: RowLock, mode: str) -> Callable[..., RowAcquisition]:
    return lock.read if mode == "read" else lock.write


async def held_elsewhere(lock: RowLock, mode: str) -> RowHeld:
    """By another task, which has ended."""
    held = await try_elsewhere(lock, mode)
    assert held is not None
    return held


async def try_elsewhere(lock: RowLock, mode: str) -> RowHeld | None:
    found: list[RowHeld | None] = []

    async def take() -> None:
        attempt = lock.try_read if mode == "read" else lock.try_write
        found.append(await attempt())

    async with anyio.create_task_group() as group:
        group.start_soon(take)
    return found[0]


async def attended(plain: PlainRows, number: int = 1) -> bool:
    """Whether so many rows are waited for there."""
    return len(plain.rows(ATTENDING)) == number


def never_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for a row and is not notified waits for ever."""
    monkeypatch.setattr(acquirer, "MAX_POLL_INTERVAL", NEVER)
    monkeypatch.setattr(acquirer, "back_off", lambda *_, **__: NEVER)
