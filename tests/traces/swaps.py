"""Records stores that compare and set: each swap with its versions, and each reply.

A process writes a swap down before it is sent. The versions order the swaps: each was
made from the version that the one before stored. So no clock is needed, and a swap
whose answer was lost, or whose grant was gone before its fence was read, was carried
out if a later one started from what it stored. On Cassandra the client chooses the
versions, so this is known; elsewhere the states are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import local
from typing import Any
from unittest.mock import patch

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra import rows
from aiorwlock_remote.cas import StepTimes, StoredState
from aiorwlock_remote.cas.stepper import CasStepper, CommandQueue
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from tests.traces.history import Journal, Request, State

Outcome = tuple[bool, StoredState | None]

_begun = local()
"""The number of the swap that this thread begins."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Fact: a swap is about to be sent."""

    number: int
    resource: str
    command: Command
    found: StoredState
    times: StepTimes
    intended: State


@dataclass(frozen=True, slots=True)
class Versioned:
    """Fact: a swap that is about to be sent would store this version (None: no row)."""

    number: int
    version: Hashable


@dataclass(frozen=True, slots=True)
class Swapped:
    """Fact: a swap was carried out; ``stored`` is what the store has since."""

    number: int
    stored: StoredState | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Fact: a swap was not carried out, and never will be."""

    number: int


@dataclass(frozen=True, slots=True)
class Replied:
    """Fact: a caller got its reply. ``number``: of the swap; None: the state was only
    read, as ``found``.
    """

    number: int | None
    resource: str
    command: Command
    found: StoredState
    times: StepTimes
    reply: Reply


Fact = Swap | Versioned | Swapped | Refused | Replied


class WatchedCas:
    """A ``CasStore`` that writes down the swaps of one stepper."""

    def __init__(self, cas: Any, stepper: CasStepper, journal: Journal) -> None:  # noqa: ANN401 - any store
        self._cas = cas
        self._stepper = stepper
        self._journal = journal
        self.times_used: StepTimes
        self.last: dict[Resource, tuple[int, Swap]] = {}
        """The swap of the command that is under way, by resource."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - everything else as it is
        return getattr(self._cas, name)

    def times(self, state: StoredState) -> StepTimes:
        self.times_used = self._cas.times(state)
        return self.times_used

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[Outcome]:
        queue = self._stepper._queues[resource]
        number, intended = self._journal.number(), State(record, seat)
        command = queue.waiting[0][0]
        swap = Swap(number, resource.key, command, state, times, intended)
        self.last[resource] = number, swap
        self._journal.write(swap)
        _begun.number = number
        swapped: Pending[Outcome] = self._cas.swap(
            resource, state, record, seat, times, wakes
        )
        swapped.add_done_callback(partial(self._swapped, resource, number))
        return swapped

    def _swapped(
        self, resource: Resource, number: int, swapped: Pending[Outcome]
    ) -> None:
        if swapped.error is not None:
            # Also one that says ``nothing_done`` may follow a swap that was carried
            # out: a grant was broken before its fence was read.
            self.last.pop(resource, None)
            return
        done, stored = swapped.result()
        if done:
            self._journal.write(Swapped(number, stored))
        else:
            self._journal.write(Refused(number))
            self.last.pop(resource, None)


@contextmanager
def recorded_swaps(journal: Journal) -> Iterator[None]:
    """Write down what every stepper of this process does."""
    init, done = CasStepper.__init__, CasStepper._done
    change_statement = rows.change_statement

    def watched_init(self: Any, cas: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401 - any stepper
        init(self, cas, *args, **options)
        self._cas = WatchedCas(self._cas, self, journal)

    def watched_done(
        self: Any,  # noqa: ANN401 - any stepper
        queue: CommandQueue,
        reply: Reply,
        step: Step,
    ) -> None:
        cas: WatchedCas = self._cas
        command, pending = queue.waiting[0]
        number, swap = cas.last.pop(queue.resource, (None, None))
        found = queue.seen if swap is None else swap.found
        times = cas.times_used if swap is None else swap.times
        done(self, queue, reply, step)
        assert found is not None, "a reply is computed from a state"
        result = pending.result()
        journal.write(
            Replied(number, queue.resource.key, command, found, times, result)
        )

    def watched_change(*args: Any) -> rows.Change:  # noqa: ANN401 - as they are
        change = change_statement(*args)
        journal.write(Versioned(_begun.number, change[0].version))
        return change

    with (
        patch.object(rows, "change_statement", watched_change),
        patch.object(CasStepper, "__init__", watched_init),
        patch.object(CasStepper, "_done", watched_done),
    ):
        yield


def requests_of(
    journals: Iterable[tuple[str, Iterable[object]]],
    version_of: Callable[[Any], Hashable],
) -> list[Request]:
    """Return the requests in the journals of several processes, in no order.

    ``version_of`` returns the version of a state's mark.
    """
    found: list[Request] = []
    for process, facts in journals:
        found += _requests_of(process, facts, version_of)
    return found


def _requests_of(
    process: str, facts: Iterable[object], version_of: Callable[[Any], Hashable]
) -> Iterator[Request]:
    swaps: dict[int, Request] = {}
    for fact in facts:
        match fact:
            case Swap(number, resource, command, state, times, intended):
                swaps[number] = Request(
                    process,
                    resource,
                    command,
                    times.now,
                    times.floor,
                    times.wall,
                    State(state.record, state.seat),
                    intended,
                    slack=times.slack,
                    start=version_of(state.mark),
                    certain=False,
                )
            case Versioned(number, version):
                swaps[number] = replace(swaps[number], end=version)
            case Swapped(number, stored):
                swap = swaps[number]
                if stored is not None:
                    version = version_of(stored.mark)
                    if swap.end not in (None, version):
                        continue  # others had changed the row before it was read
                    after = State(stored.record, stored.seat)
                    swap = replace(swap, after=after, end=version)
                swaps[number] = replace(swap, certain=True)
            case Refused(number):
                del swaps[number]
            case Replied(None, resource, command, state, times, reply):
                same = State(state.record, state.seat)
                version = version_of(state.mark)
                yield Request(
                    process,
                    resource,
                    command,
                    times.now,
                    times.floor,
                    times.wall,
                    same,
                    same,
                    reply,
                    slack=times.slack,
                    start=version,
                    end=version,
                )
            case Replied(number, _, _, _, _, reply):
                assert number is not None
                swaps[number] = replace(swaps[number], reply=reply)
            case _:
                raise TypeError(f"not a fact of swaps: {fact!r}")
    yield from swaps.values()
