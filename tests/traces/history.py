"""Recorded requests of one store, and the journals in which processes write them.

A journal is a file of one process: a fact is in it when ``write`` returns, so that a
process that is killed misses none but, at most, its last, whose line is torn.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import Doorman, MutexRecord


@dataclass(frozen=True, slots=True)
class State:
    """What a store has for one resource, decoded from its own bytes."""

    record: Doorman | None = None
    seat: MutexRecord | None = None


NOTHING = State()


@dataclass(frozen=True, slots=True)
class Request:
    """One command, as a process sent it and as the store carried it out.

    Attributes:
        process: Name of the process that sent it.
        resource: Key of the resource.
        now, floor, wall: What the transition was computed with.
        slack: What was added to every lease (``cas/server_time.py``).
        before: What the store had.
        after: What the store had then; equal to ``before`` if nothing was to be stored.
        start, end: The versions of ``before`` and ``after``, if the store has versions:
            equal if nothing was stored, ``end`` is None if its version is not known.
        reply: What the caller received; None: the caller did not learn the outcome.
        certain: Whether the store confirmed that the command was carried out. If not,
            it may have been.
        illegal: Whether the store refused the command as illegal.
        own: Client id of the caller, to whom a store that calls clients sends nothing.
        called: The clients to which the store sent a message, in order, and whether it
            reached them; None: not recorded.
    """

    process: str
    resource: str
    command: Command
    now: int
    floor: int
    wall: int
    before: State
    after: State
    reply: Reply | None = None
    slack: int = 0
    start: Hashable = None
    end: Hashable = None
    certain: bool = True
    illegal: bool = False
    own: str = ""
    called: tuple[tuple[str, bool], ...] | None = None


class Journal:
    """The file of one process; its threads may share it."""

    def __init__(self, path: Path, process: str) -> None:
        self.process: str = process
        # Unbuffered and O_APPEND: one fact is one write.
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._numbers = 0

    def close(self) -> None:
        self._file.close()

    def number(self) -> int:
        """Return a number that no other fact of this journal has."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def write(self, fact: object) -> None:
        data = pickle.dumps(fact)
        with self._lock:
            if self._file.write(data) != len(data):
                raise OSError("a fact could not be written whole")


def read_journal(path: Path) -> Iterator[object]:
    """Yield the facts of one process; the last one may be torn, and is left out."""
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 - written by this program
            except (EOFError, pickle.UnpicklingError):
                return
