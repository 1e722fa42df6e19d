"""Why there is no connection, and what the log says of it."""

from __future__ import annotations

import logging

from aiorwlock_remote.errors import LockError
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")


class OutageLog:
    """Each reason is written once, until the connection is back.

    Reasons that take turns (one of two addresses is silent, the other refuses) would
    else fill the log for as long as the server is away.
    """

    def __init__(self, server: str) -> None:
        """There is no connection yet, and nothing is wrong with that."""
        self._server = server
        self._told: set[str] = set()
        self.why: str = ""

    def lost(self, error: LockError) -> None:
        """There was a connection."""
        self._note("redis_lost", error)

    def goes_on(self, error: Exception) -> None:
        """There is none in its place."""
        self._note("redis_away", error)

    def end(self) -> None:
        """There is one."""
        if self._told:
            log_event(log, "redis_reconnected", logging.INFO, server=self._server)
        self._told.clear()

    def _note(self, event: str, error: Exception) -> None:
        self.why = str(error)
        if self.why in self._told:
            return
        self._told.add(self.why)
        # What is no error of ours is a defect: where it came from is needed.
        defect = None if isinstance(error, LockError) else error
        where = self._server
        log_event(log, event, exc_info=defect, server=where, error=self.why)
