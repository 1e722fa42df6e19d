"""What the recipes ask of a store that can hold them, beyond ``ports.Store``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.pair import Pair
from aiorwlock_remote.core.pool import Ask, Told
from aiorwlock_remote.pending import Pending


class Members(Protocol):
    """A set of mutexes in a store, as one process uses it. Seconds.

    Requests are handed over at once and carried out in order with each other and with
    ``Store.step``, which releases and renews what was taken: a ``Member`` is its
    resource. Fail with ``BackendError``.
    """

    def ask(self, asks: Sequence[Ask], place_life: float) -> Pending[Told]:
        """Take what is wanted, if it is free and nobody's turn comes before.

        Refused, each gets a place in the queue for so long; 0: takes none. Asking
        again with the same ticket is answered as before.
        """

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        """Nobody here waits for these any more; what the tickets were given goes back.

        Sent even if the connection has to be made anew.
        """

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add a mutex; False if it is there."""

    def remove(self, name: str) -> Pending[bool]:
        """Remove a mutex, held or not; False if there is none."""

    def end(self, ticket: str) -> Pending[Reply]:
        """Release, and remove the mutex in the same step; answers as a release."""

    def names(self) -> AsyncIterator[str]:
        """All mutexes; one added or removed meanwhile may be among them or not."""

    def watch(self) -> None:
        """Somebody waits here: ring when anything changes, if the store can tell."""

    def unwatch(self) -> None:
        """Nobody does."""


@runtime_checkable
class HoldsSets(Protocol):
    """A store that can hold sets of mutexes."""

    def members(self, name: str, ring: Callable[[str | None], object]) -> Members:
        """The set of that name; no I/O.

        ``ring(target)``: it is our turn; ``ring(None)``: something has changed.
        """


@runtime_checkable
class HoldsPairs(Protocol):
    """A store that can hold readers-writer locks on pairs of published keys.

    A ``Pair`` is a resource of it like any other.
    """

    def check_pair(self, pair: Pair) -> None:
        """Refuse a pair whose keys this store cannot change in one step.

        Raises:
            ConfigurationError: it has to be named otherwise.
        """
