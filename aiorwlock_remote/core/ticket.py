"""Modes, policies and tickets.

A ticket is the secret that proves a grant: whoever knows it may release. It is never
shown; people see a ``holder``, the first 12 hex digits of its SHA-256.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError

READERS = "readers"
"""The ticket that stands in the published mutex record while readers hold it."""

MAX_TICKET = 200


ModeName = Literal["read", "write"]
"""How a lock is held, as users see it."""


class Mode(StrEnum):
    """How a resource is held: together with other readers, or alone."""

    READ = "read"
    WRITE = "write"

    @property
    def shown(self) -> ModeName:
        """As users see it."""
        return "read" if self is Mode.READ else "write"


def mode_of(mode: str) -> Mode:
    """The mode of that name.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return Mode(mode)
    except ValueError:
        raise ConfigurationError(
            what=f"mode {quoted(mode)}", hint="'read' or 'write'"
        ) from None


class Policy(StrEnum):
    """Who goes first when readers and writers both wait.

    ``FAIR`` is phase-fair FIFO: after a writer all readers waiting at that moment,
    after a read phase the oldest writer; nobody starves. (Brandenburg and Anderson,
    "Reader-writer synchronization for shared-memory multiprocessor real-time
    systems", ECRTS 2009.) ``WRITER`` and ``READER`` starve the other side by design.
    ``BARGE`` ignores the queue: an unfair mutex.
    """

    FAIR = "fair"
    WRITER = "writer"
    READER = "reader"
    BARGE = "barge"


@lru_cache(maxsize=4096)
def holder_of(ticket: str) -> str:
    """The public name of a ticket: 12 hex digits, safe to log and to show."""
    return sha256(ticket.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def check_ticket(ticket: str) -> str:
    """A caller's own ticket, if it can stand in the published mutex record.

    Raises:
        ConfigurationError: empty, too long, ``readers``, or with a comma or a control
            character in it.
    """
    if not isinstance(ticket, str):
        raise ConfigurationError(
            what=f"ticket must be str, not {type(ticket).__name__}"
        )
    if not ticket or len(ticket) > MAX_TICKET or ticket == READERS:
        raise ConfigurationError(
            what="ticket is empty, longer than 200 characters, or the word 'readers'",
            hint="use a random string",
        )
    if any(c == "," or ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in ticket):
        raise ConfigurationError(what="ticket has a comma or a control character in it")
    try:
        ticket.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(what="ticket is not valid Unicode text") from None
    return ticket
