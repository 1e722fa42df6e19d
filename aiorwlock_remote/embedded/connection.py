"""What a store in files has to offer: steps under its lock, all of it blocking.

What a watcher's thread sleeps on.

One command of a batch: its outcome, and what a damaged record is told as.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from aiorwlock_remote._util.purge import FIRST_KEY, Key
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.errors import BackendUnavailable, BadRecord
from aiorwlock_remote.ports import Snapshot


class WakeEvent(Protocol):
    """Waited for by one thread."""

    @property
    def hears(self) -> bool:
        """Whether changes wake as well, so that one need not look often."""

    def set(self) -> None:
        """Wake the one that waits, or that comes to wait; from any thread."""

    def wait(self, seconds: float | None) -> None:
        """Until woken or so long; None: until woken by ``set``, by no change."""

    def close(self) -> None:
        """It is not waited for any more."""


class PlainWakeEvent:
    """An alarm that hears no changes."""

    hears: bool = False

    def __init__(self) -> None:
        """Not set."""
        self._event = threading.Event()

    def set(self) -> None:
        """As ``WakeEvent``."""
        self._event.set()

    def wait(self, seconds: float | None) -> None:
        """As ``WakeEvent``."""
        self._event.wait(seconds)
        self._event.clear()

    def close(self) -> None:
        """Nothing was opened."""


Batch = Iterable[tuple[Resource, Command]]
Seen = dict[str, Snapshot | None]
"""What a scan has found so far, by the names of the store's own."""


class KeptLocked(BackendUnavailable):
    """Another process keeps one record locked, and the caller may try again later."""


class LocalConnection(Protocol):
    """A way to the files. Belongs to one thread; not open until ``open``."""

    def open(self, timeout: float) -> None:
        """Make it ready, and the store if it is new and may be made.

        Raises:
            ConfigurationError: not to be opened, or somebody else's.
            BackendError: kept locked by others for ``timeout`` seconds, or damaged.
        """

    def close(self) -> None:
        """Close it; one never opened is closed already."""

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        """Carry out commands; those of one resource in order. Each outcome by itself.

        Waits ``timeout`` seconds for a store that is locked as a whole, and not at all
        for one record: the outcome of its commands is ``KeptLocked``.

        Raises:
            BackendError: it is not known which were carried out.
        """

    def look(self, resource: Resource) -> Snapshot:
        """One resource as it stands.

        Raises:
            KeptLocked: another process is in the middle of a step there.
        """

    def scan(self, seen: Seen) -> None:
        """Add all resources with a record or a seat that are not ``seen`` yet.

        Raises:
            KeptLocked: all but some were added; those others are to be asked for again.
        """

    def forget(self, memory: float, after: Key = FIRST_KEY) -> Key | None:
        """Drop some records that nobody has used for ``memory`` seconds.

        Where to go on soon; None: nowhere.
        """

    def alarm(self) -> WakeEvent:
        """What its watcher sleeps on, once it is open."""

    def version(self) -> object:
        """Told cheaply: not equal to the one before if somebody changed something."""


DECODE_CACHE_SIZE = 256


def step_outcome(resource: Resource, carry_out: Callable[[], Step]) -> Step | BadRecord:
    """What it comes to; a record that cannot be used is the trouble of its own users.

    Nothing may be written before it has failed.
    """
    try:
        return carry_out()
    except BadRecord as exc:
        exc.what = f"{resource.label}: {exc.what}"
        exc.nothing_done = True
        return exc
    except (TypeError, ValueError, OverflowError) as exc:
        what = f"the record of {resource.label} cannot be used"
        bad = BadRecord(what=what, nothing_done=True)
        bad.__cause__ = exc
        return bad


class DecodeCache:
    """What was read or written lately, by its text."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._records: dict[str, Doorman] = {}

    def __call__(self, text: str) -> Doorman:
        """The record of a text.

        Raises:
            BadRecord: it is none.
        """
        return self._records.get(text) or self.keep(text, loads(text))

    def keep(self, text: str, record: Doorman) -> Doorman:
        """Remember it."""
        if len(self._records) >= DECODE_CACHE_SIZE:
            self._records.clear()
        self._records[text] = record
        return record
