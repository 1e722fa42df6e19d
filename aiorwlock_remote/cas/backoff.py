"""Pauses between attempts of a request that the database refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from typing import TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.core.commands import Acquire, Command
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import back_off, pause_behind

IMMEDIATE_RETRIES = 2
"""So many refusals are followed by a new attempt without a pause."""
RETRIES_AFTER_A_PAUSE = 2
"""So many refusals after each pause are, too: a state that was read may be old already
where other processes hand over without a pause, and that of a refusal is newer."""
FIRST_PAUSE, MAX_PAUSE = 0.002, 0.05
"""Seconds: half the upper bound of the first pause, and the bound of all pauses."""
MAX_ENTERING_PAUSE = 1.0
"""The bound of the pauses of a client without a queue entry, in seconds: N clients that
come at once, and are served one by one, need pauses of N such times."""
MAX_CONFLICT_ATTEMPTS = 20
"""Attempts of a request, if each attempt conflicts with another transaction."""

T = TypeVar("T")
Later = Callable[[float, Callable[[], None]], None]
GoOn = Callable[[StoredState | None], None]


def longest_pause(command: Command, state: StoredState | None) -> float:
    """Return the bound of the pauses between attempts of ``command``, in seconds.

    A holder's swaps, and those of a client whose turn is near, must not wait behind
    those of a client that only wants to enter the queue or to prolong its entry.
    ``state``: the stored state as it was seen last.
    """
    if not isinstance(command, Acquire):
        return MAX_PAUSE
    queue = () if state is None or state.record is None else state.record.queue
    for turns, entry in enumerate(queue):
        if entry.client_id == command.client_id and entry.mode is command.mode:
            return max(MAX_PAUSE, pause_behind(turns))
    return MAX_ENTERING_PAUSE


def retry_pause(number: int, longest: float = MAX_PAUSE) -> float:
    """Return the seconds, random, of the pause with this number, the first being 1."""
    return back_off(number, random(), first=FIRST_PAUSE, longest=longest)


async def retry_on_conflict(
    work: Callable[[], Awaitable[T]], is_conflict: Callable[[Exception], bool]
) -> T:
    """Await ``work()``, again after each conflict with another transaction.

    Return its result; after ``MAX_CONFLICT_ATTEMPTS`` raise the last error. Conflicts
    occur if sessions are set to REPEATABLE READ or SERIALIZABLE: the second of two
    concurrent transactions is refused, even a read
    (``tests/cas/in_transaction_suite.py``).

    Args:
        work: Runs one statement in a transaction of its own.
        is_conflict: Returns True for an error that means: a conflict with another
            transaction, nothing was done. Other errors of ``work`` are raised at once.
    """
    for refusals in range(1, MAX_CONFLICT_ATTEMPTS):
        try:
            return await work()
        except Exception as exc:
            if not is_conflict(exc):
                raise
        pauses = refusals - IMMEDIATE_RETRIES
        await asyncio.sleep(retry_pause(pauses) if pauses > 0 else 0)
    return await work()


class CasBackoff:
    """Delays the retries of a refused swap: no pause at first, then random pauses.

    The first retries start at once from the current state, which each refusal contains.
    After a pause that state is old, and a swap based on it would be refused again. So
    the resource is read once more before the retry, and retries at once may follow
    (test_a_pause_is_followed_by_several_attempts). A client that wants to enter the
    queue pauses for longer than a holder (test_entering_pauses_grow_longer).
    """

    def __init__(
        self, read: Callable[[Resource], Pending[StoredState]], later: Later
    ) -> None:
        self._read = read
        self._later = later

    def __call__(
        self, resource: Resource, longest: float, refusals: int, go_on: GoOn
    ) -> None:
        after_the_first = refusals - IMMEDIATE_RETRIES - 1
        pauses, retries = divmod(after_the_first, 1 + RETRIES_AFTER_A_PAUSE)
        if pauses < 0 or retries:
            go_on(None)
            return
        pause = retry_pause(pauses + 1, longest)
        self._later(pause, partial(self._look, resource, go_on))

    def _look(self, resource: Resource, go_on: GoOn) -> None:
        def looked(read: Pending[StoredState]) -> None:
            go_on(None if read.error is not None else read.result())

        self._read(resource).add_done_callback(looked)
