"""What ``StoreBase.members`` and ``StoreBase.occupations`` return."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.mutex_set import TakeReplies, TakeRequest
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges


class MutexSetMembers(Protocol):
    """A group of interchangeable mutexes (a mutex set) in a store, as a client uses it.

    Requests are sent at once and carried out in the order of the calls, also those of
    ``StoreBase.step``, which releases and renews the mutexes taken (with a
    ``SetMember`` as the resource). They fail with ``BackendError``. ``lease``:
    microseconds for which a mutex of this set is held unless renewed.
    """

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        """Take each wanted mutex that is free and for which no other client waits.

        A refused request gets a queue entry for ``entry_ttl`` seconds; 0: no entry. A
        repeated request with the same ticket gets the same reply.
        """

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[Reply]:
        """Remove this client's queue entries, and release what the tickets hold.

        ``places``: targets of the entries (names, or ``ANY_MEMBER``). ``lease``: the
        set's, microseconds. If needed, the store reconnects first.
        """

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add a mutex; False if it exists. ``lease``: the set's, microseconds."""

    def remove(self, name: str) -> Pending[bool]:
        """Remove a mutex, held or not; the reply is False if it does not exist."""

    def end(self, ticket: str) -> Pending[Reply]:
        """Release a ticket, and remove its mutex from the set, in one step."""

    def names(self) -> AsyncGenerator[str, None]:
        """Yield all names of mutexes; one added or removed meanwhile may be missing."""

    def watch(self) -> None:
        """From now on, call the ``ring`` given to ``members`` when the set changes."""

    def unwatch(self) -> None:
        """End the calls that ``watch`` asked for: no task of this client waits now."""


class OccupancyStore(Protocol):
    """Store of records of processes that want (pending) or have (using) an object.

    Each call is one atomic step, and no caller is cancelled in the middle of one. Calls
    fail with ``BackendError``. ``thing``: an object's name. ``who``: the id of one
    attempt of a process to get the object.
    """

    @property
    def ages(self) -> ExpiryAges: ...

    @property
    def confirms(self) -> bool:
        """Whether ``usings`` may be outdated, except after a change by this process."""

    def check(self, thing: str) -> None:
        """Raise ``ConfigurationError`` if the store cannot hold this object's name."""

    def sign(self, label: str) -> str:
        """Return a new id for an attempt to get an object, by a process so labelled."""

    async def write(self, thing: str, who: str) -> None:
        """Write a new pending record, whose age counts from now."""

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return records of other attempts than ``who`` that want the object."""

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return records of other attempts than ``who`` that use the object now."""

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Remove a record that was found, unless it has been written anew since.

        ``using``: whether its process has the object, not only wants it.
        """

    async def promote(self, thing: str, who: str) -> bool:
        """Turn the pending record of ``who`` into a using one; False if it is gone."""

    async def extend(self, thing: str, who: str) -> bool:
        """Restart the age of ``who``'s using record; return False if it is gone."""

    async def remove(self, thing: str, who: str) -> bool:
        """Remove both records of ``who``; return True if it had the object (using)."""
