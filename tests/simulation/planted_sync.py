"""Faults planted into the synchronous API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.sync import background
from aiorwlock_remote.sync.twins import SyncGrant
from tests.simulation.planted import plant


@plant("sync")
def an_interrupted_call_goes_on() -> AbstractContextManager[Any]:
    kept: list[background._Call[Any]] = []

    def broken(self: background._Call[Any]) -> None:
        kept.append(self)

    return patch.object(background._Call, "abandon", broken)


@plant("sync")
def an_interrupted_body_keeps_its_grant() -> AbstractContextManager[Any]:
    sound = SyncGrant.__exit__

    def broken(self: SyncGrant[Any], kind: Any, exc: Any, traceback: Any) -> None:
        if exc is None:
            sound(self, kind, exc, traceback)
        self._left = True

    return patch.object(SyncGrant, "__exit__", broken)


@plant("sync")
def all_threads_are_one_task() -> AbstractContextManager[Any]:
    def broken(self: background.ThreadsEventLoop) -> object:
        return type(self)

    return patch.object(background.ThreadsEventLoop, "current_task", broken)
