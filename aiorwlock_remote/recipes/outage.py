"""``Outage``: the pauses of a recipe that goes on while its store is out of reach."""

from __future__ import annotations

import logging
from random import random
from typing import final

import anyio

from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    LockError,
)
from aiorwlock_remote.logs import log_event

MAX_CONNECT_PAUSE = 5.0
"""Longest pause, in seconds, between two attempts to connect while the store is down.
"""
MAX_PAUSE = 0.5
"""Longest pause in seconds: how late an attempt comes after the end of an outage."""


def may_pass(error: BaseException) -> bool:
    """Return True if the error is that of a store which may work again later."""
    if isinstance(error, AcquireUncertain | BackendUnavailable):
        return True
    return isinstance(error, BackendError) and error.retry_after is not None


@final
class Outage:
    """The failed attempts of one task in a row, and what is logged of them.

    Of each outage one line is logged, with its first error
    (test_leader.py: test_one_line_is_logged_of_each_outage).
    """

    def __init__(self, log: logging.Logger, event: str, resource: str) -> None:
        """Count from no failure.

        Args:
            log: the logger for the first failure.
            event: the name of the event that is logged.
            resource: label of the lock that could not be obtained, for the log.
        """
        self._log = log
        self._event = event
        self._resource = resource
        self._failures = 0

    async def pause(self, error: LockError) -> None:
        """Count a failure; log it if it is the first; wait before the next attempt.

        The pause has jitter, so that the processes that an outage has stopped do not
        all ask at once when the store is back.
        """
        if self._failures == 0:
            event, resource = self._event, self._resource
            log_event(self._log, event, resource=resource, error=str(error))
        attempt, self._failures = self._failures, self._failures + 1
        await anyio.sleep(back_off(attempt, random(), longest=MAX_PAUSE))

    def over(self) -> None:
        """Note that the store has answered: the next failure begins a new outage."""
        self._failures = 0
