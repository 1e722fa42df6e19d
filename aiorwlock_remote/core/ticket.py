"""Modes, policies and tickets.

A ticket is the secret that proves a grant: any program that knows it may release the
lock. It is never shown. People see a ``holder`` id: the first 12 hex digits of the
ticket's SHA-256.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from aiorwlock_remote.core.text import (
    check_str,
    check_unicode,
    has_control_character,
    quoted,
)
from aiorwlock_remote.errors import ConfigurationError

# The word in the published mutex record while readers hold the resource.
READERS = "readers"
# The word in the mutex record of a semaphore while any permit is held.
PERMITS = "permits"
# Characters in the longest ticket.
MAX_TICKET = 200
ModeName = Literal["read", "write", "permit"]
"""The name of a mode, as users see it; ``"permit"`` is that of a semaphore."""
LockModeName = Literal["read", "write"]
"""The name of a mode of a lock."""


class Mode(StrEnum):
    """How a resource is held: together with other readers, alone, or by one of the
    permits of a semaphore.
    """

    READ = "read"
    WRITE = "write"
    PERMIT = "permit"

    @property
    def shown(self) -> ModeName:
        if self is Mode.PERMIT:
            return "permit"
        return "read" if self is Mode.READ else "write"


LOCK_MODES: tuple[Mode, Mode] = (Mode.READ, Mode.WRITE)
"""The modes of a lock; a semaphore has permits alone."""


def mode_of(mode: str) -> Mode:
    """Return the mode called "read" or "write", or raise ``ConfigurationError``."""
    if mode not in LOCK_MODES:
        what = f"mode {quoted(mode)} does not exist"
        raise ConfigurationError(what=what, hint="'read' or 'write'")
    return Mode(mode)


class Policy(StrEnum):
    """Which side goes first when readers and writers both wait.

    ``FAIR`` is phase-fair FIFO: after a writer come all readers waiting at that moment,
    after a read phase the oldest writer, and no waiter starves. ``WRITER`` and
    ``READER`` starve the other side by design. ``BARGE`` ignores the queue: an unfair
    mutex.
    """

    # Brandenburg and Anderson, "Reader-writer synchronization for shared-memory
    # multiprocessor real-time systems", ECRTS 2009.
    FAIR = "fair"
    WRITER = "writer"
    READER = "reader"
    BARGE = "barge"


def new_holder_of(ticket: str) -> str:
    """Return what ``holder_of`` returns, for a ticket that is seen the first time."""
    return sha256(ticket.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@lru_cache(maxsize=4096)
def holder_of(ticket: str) -> str:
    """Return the public id of a ticket's holder: 12 hex digits, safe to log."""
    return new_holder_of(ticket)


def check_ticket(ticket: str) -> str:
    """Return a user's own ticket if it is valid, or raise ``ConfigurationError``."""
    check_str("ticket", ticket)
    # The word ``readers`` would make the record of this ticket a read phase's.
    if not ticket or len(ticket) > MAX_TICKET or ticket == READERS:
        raise ConfigurationError(
            what="ticket is empty, longer than 200 characters, or the word 'readers'",
            hint="use a random string",
        )
    # A comma separates the ticket from the time in the record.
    if "," in ticket or has_control_character(ticket):
        raise ConfigurationError(what="ticket has a comma or a control character in it")
    check_unicode("ticket", ticket)
    return ticket
