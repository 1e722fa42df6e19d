"""Faults planted into the synchronous API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.sync import background
from tests.simulation.planted import plant


@plant("sync")
def an_interrupted_call_goes_on() -> AbstractContextManager[Any]:
    kept: list[background._Call[Any]] = []

    def broken(self: background._Call[Any]) -> None:
        kept.append(self)

    return patch.object(background._Call, "drop", broken)


@plant("sync")
def all_threads_are_one_task() -> AbstractContextManager[Any]:
    def broken(self: background.ThreadsEventLoop) -> object:
        return type(self)

    return patch.object(background.ThreadsEventLoop, "current_task", broken)
