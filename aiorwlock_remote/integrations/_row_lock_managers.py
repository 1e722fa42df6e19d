"""Desks for the row locks of a loop at a database, as long as anybody uses them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.requests import RunsPlans
from aiorwlock_remote.recipes.row_lock.target import Kind
from aiorwlock_remote.runtime.event_loop import current_event_loop

S = TypeVar("S")


class RowLockManagers(Generic[S]):
    """Waiters for one row know of each other, however often its lock is made.

    A desk refers to its loop and its database. So neither keeps it, or none of them
    would ever go: its locks, attempts and grants do.
    """

    def __init__(self) -> None:
        """None yet."""
        self._desks: weakref.WeakValueDictionary[
            tuple[int, Hashable], RowLockManager[S]
        ]
        self._desks = weakref.WeakValueDictionary()

    def desk(
        self, database: Hashable, known: set[Kind], carrier: Callable[[], RunsPlans[S]]
    ) -> RowLockManager[S]:
        """That of the running loop. ``known``: kinds of rows; it may learn more.

        ``database`` tells it from others as long as the carrier is there.

        Raises:
            RuntimeError: none of asyncio's is running.
        """
        key = id(asyncio.get_running_loop()), database
        desk = self._desks.get(key)
        if desk is None:
            desk = RowLockManager(carrier(), current_event_loop(), _unchecked, known)
            self._desks[key] = desk
        return desk


def _unchecked() -> None:
    """Connections of the user's may be asked for as long as they are there."""
