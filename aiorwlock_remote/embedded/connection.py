"""Interfaces that a store in local files implements for the threads of ``embedded``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aiorwlock_remote._util.native import Event
from aiorwlock_remote._util.purge import FIRST_KEY, Key
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.errors import BackendUnavailable, BadRecord
from aiorwlock_remote.ports import Snapshot

DECODE_CACHE_SIZE = 256
"""Records that a ``DecodeCache`` remembers."""

Batch = Iterable[tuple[Resource, Command]]
Seen = dict[str, Snapshot | None]
"""What a scan has found so far, by the store's own names."""


class KeptLocked(BackendUnavailable):
    """Another process keeps one record locked; the caller may try again later."""


class WakeEvent(Protocol):
    """Event on which one thread sleeps until the store may have changed."""

    @property
    def hears(self) -> bool:
        """Whether changes by other processes set the event, so polling can be rare."""

    def set(self) -> None:
        """Wake the waiting thread, or the next one to wait. For any thread."""

    def wait(self, seconds: float | None, *, quiet: bool = False) -> bool:
        """Wait for ``set``, a change or ``seconds``; return whether for a change.

        A change is one by another process, which has begun or ended it. If ``quiet``,
        no change ends the wait, nor if ``seconds`` is None: wait for ``set`` only.
        """

    def close(self) -> None:
        """Release the event's resources. Called when no thread waits any more."""


class PlainWakeEvent:
    """``WakeEvent`` that is set by ``set`` only, not by changes of the store."""

    hears: bool = False

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float | None, *, quiet: bool = False) -> bool:
        del quiet
        self._event.wait(seconds)
        self._event.clear()
        return False

    def close(self) -> None:
        pass


class LocalConnection(Protocol):
    """Interface: a blocking connection to a local store, for one thread."""

    def open(self, timeout: float) -> None:
        """Open the store; create it if it is new and may be created.

        Raises ``ConfigurationError`` if it belongs to another program, ``BackendError``
        if it is damaged, or locked by others for ``timeout`` seconds.
        """

    def close(self) -> None:
        """Close the connection; do nothing if it is not open."""

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        """Carry out commands, those of one resource in order; return all outcomes.

        Waits ``timeout`` seconds for a store that is locked as a whole. If another
        process keeps one record locked, the outcome of that record's commands is
        ``KeptLocked`` at once. After a ``BackendError`` it is not known which commands
        were carried out.
        """

    def look(self, resource: Resource) -> Snapshot:
        """Read one resource; raise ``KeptLocked`` if another process has it locked."""

    def scan(self, seen: Seen) -> None:
        """Add the state of every resource that ``seen`` does not have yet.

        ``seen`` maps the store's own names of resources to states. Raises
        ``KeptLocked`` if some resources could not be read, after the others were added.
        """

    def forget(self, memory: float, after: Key = FIRST_KEY) -> Key | None:
        """Delete some records that were not used for ``memory`` seconds.

        Starts after the key ``after``. Return the key to pass to the next call, or None
        if the end of the store was reached.
        """

    def alarm(self) -> WakeEvent:
        """Return a new event, set by changes of this store if the store can notify.

        It may be set when a change begins, before ``version`` shows the change.
        """

    def version(self) -> object:
        """Return a value that differs after any change of the store; cheap to call.

        Raises ``BackendError`` if the connection is not open, or if another store took
        the place of the one that was open: ``open`` and ``alarm`` must be called again.
        """


class DecodeCache:
    """Cache of decoded records by their stored text: those read or written lately."""

    def __init__(self) -> None:
        self._records: dict[str, Doorman] = {}

    def __call__(self, text: str) -> Doorman:
        """Return the record that is stored as ``text``, or raise ``BadRecord``."""
        return self._records.get(text) or self.keep(text, loads(text))

    def keep(self, text: str, record: Doorman) -> Doorman:
        if len(self._records) >= DECODE_CACHE_SIZE:
            self._records.clear()
        self._records[text] = record
        return record


def step_outcome(resource: Resource, carry_out: Callable[[], Step]) -> Step | BadRecord:
    """Call ``carry_out()`` and return its result, or ``BadRecord`` if that was raised.

    ``BadRecord`` says that the record of ``resource`` is damaged; ``carry_out`` must
    detect the damage before it writes anything.
    """
    # A damaged record must not fail the commands for other resources in the batch
    # (test_sqlite_hostile.py: test_one_spoilt_record_harms_no_other).
    try:
        return carry_out()
    except BadRecord as exc:
        exc.what = f"{resource.label}: {exc.what}"
        exc.nothing_done = True
        return exc
    except (TypeError, ValueError, OverflowError) as exc:
        what = f"the record of {resource.label} is damaged: its values make no sense"
        bad = BadRecord(what=what, nothing_done=True)
        bad.__cause__ = exc
        return bad
