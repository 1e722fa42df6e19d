"""Statements that notify somebody, while the server takes no notifications.

Its queue of them is full when one session that listens stays in a transaction for long:
then each ``NOTIFY`` of the whole server fails, and the statement with it. A lock that
could not be released for that would stay held, so it is released without waking anybody
(``tests/backends/postgresql/test_notify_queue.py``). Waiters poll every two seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import PostgresError
from aiorwlock_remote.logs import log_event

HINT = "which session that listens is in a transaction? see pg_stat_activity"

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")

T = TypeVar("T")


class Notices:
    """Of one store; it tells the log once an outage."""

    def __init__(self, where: str) -> None:
        """``where``: the server, for messages."""
        self._where = where
        self._full = False

    async def sent(
        self, loud: Callable[[], Awaitable[T]], quiet: Callable[[], Awaitable[T]]
    ) -> T:
        """What ``loud`` tells; or ``quiet``, which notifies nobody, where it cannot."""
        try:
            told = await loud()
        except PostgresError as exc:
            if errors.code_of(exc) != errors.TOO_MUCH:
                raise
        else:
            self._full = False
            return told
        told = await quiet()  # fails as well if it was not the queue
        if not self._full:
            self._full = True
            log_event(log, "notify_queue_full", server=self._where, hint=HINT)
        return told
