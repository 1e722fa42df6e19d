"""What a store in files has to offer: steps under its lock, all of it blocking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from aiorwlock_remote._util.purge import FIRST_KEY, Key
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.wake_event import WakeEvent
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Snapshot

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
