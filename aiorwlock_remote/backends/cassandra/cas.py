"""The table as a store that compares and sets (``swapping.Cas``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from aiorwlock_remote.backends.cassandra.frame import Memory, Written, now_of
from aiorwlock_remote.backends.cassandra.rows import (
    NOTHING,
    Found,
    columns_of,
    found_of,
    settled,
)
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.backends.cassandra.wire import APPLIED, Request, Row, Rows
from aiorwlock_remote.core.lease import MICROS, micros
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.record import Record, Seat
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Host
from aiorwlock_remote.swapping import State

BURN = 15
"""Seconds for which an empty row refuses what may still be on its way."""
BURNT = "burnt_until"

A = TypeVar("A")
B = TypeVar("B")
Outcome = tuple[bool, State | None]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A version; rows of published programs have none, and are told by their seat."""

    condition: tuple[UUID | None, str | None, int | None] = field(repr=False)
    found: Found = field(compare=False)


class CassandraCas:
    """Each swap is one lightweight transaction, each load a SERIAL read.

    A grant from nothing is followed by a read of its fence, see ``rows.py``.
    """

    def __init__(
        self,
        table: Table,
        host: Host,
        prefix: str = "",
        memory: Memory | None = None,
    ) -> None:
        """``prefix`` goes before every resource type.

        ``memory``: of what this process wrote and saw, shared by its threads.
        """
        self._table = table
        self._host = host
        self._prefix = prefix
        skew = table.options.clock_skew
        self._skew = micros(skew) if skew < float("inf") else None
        self._memory = memory or Memory()

    def guess(self) -> State:
        """Nothing."""
        return _state(NOTHING)

    def clock(self) -> int:
        """The boot clock."""
        return micros(self._host.clock.now())

    def times(self, state: State) -> tuple[int, int, int]:
        """The least the time of the row's frame can be; fences count by one."""
        found: Found = state.mark.found
        wall = micros(self._host.clock.wall())
        if found.version is None or found.record is None:
            return wall, 0, wall  # a new frame begins, as our wall clock has it
        written = self._memory.get(found.version)
        if written is None:  # forgotten: as if seen just now
            written = Written(found.frame or 0, found.record.updated, self.clock())
        return now_of(written, self.clock(), wall, self._skew), 0, wall

    def load(self, resource: Resource) -> Pending[State]:
        """By a SERIAL read."""
        request = self._table.request("load", *self._key(resource))
        return _mapped(self._table.ask(self._host, request), self._loaded)

    def peek(self, resource: Resource) -> Pending[State]:
        """What stood there a moment ago, by a plain read: it disturbs nobody."""
        request = self._table.request("peek", *self._key(resource))
        return _mapped(self._table.ask(self._host, request), self._loaded)

    def read(self, row: Row) -> State:
        """A row that some other read has found."""
        return self._seen(found_of(row))

    def swap(
        self, resource: Resource, state: State, record: Record, seat: Seat | None
    ) -> Pending[Outcome]:
        """By the statement that fits; from nothing to nothing it is a burn."""
        found: Found = state.mark.found
        key, (now, _, wall) = self._key(resource), self.times(state)
        # The frame and the wall clock are of the same moment, whatever else changes.
        record = replace(_burning(found, record, now), updated=wall)
        new = Found(version=uuid4(), record=record, frame=now)
        if seat is not None:
            _, ticket, since = columns_of(record, seat)
            new = Found(new.version, ticket, since, record, now)
        stays = (new.ticket, new.since) == (found.ticket, found.since)
        idle = not (record.grants or record.queue or record.upgrader)
        if idle and record.barred_until <= now:
            new = Found(None, new.ticket, new.since)
            if found == NOTHING:
                new = Found(uuid4())
                request = self._table.request("burn", BURN, new.version, *key)
            elif seat is None and (left := burnt_until(record) - now) > 0:
                new = Found(uuid4())
                ttl = math.ceil(left / MICROS)
                burn = (ttl, new.version)
                request = self._table.request("scorch", *burn, *key, *found.condition)
            elif seat is None:
                request = self._table.request("vanish", *key, *found.condition)
            else:  # a published program's: only ours goes
                nothing = (None, None, None)
                request = self._table.request("keep", *nothing, *key, *found.condition)
        else:
            text = columns_of(record, seat)[0]
            ours, theirs = (new.version, text, now), (new.ticket, new.since)
            if found == NOTHING:
                request = self._table.request("appear", *theirs, *ours, *key)
            elif stays:
                request = self._table.request("keep", *ours, *key, *found.condition)
            else:
                both = (*theirs, *ours)
                request = self._table.request("seat", *both, *key, *found.condition)
        if new.version is not None:
            self._memory.add(new.version, Written(now, wall, self.clock()))
        then = None if new.settled else partial(self._fence, key)
        asked = self._table.ask(self._host, request, then)
        outcome: Pending[Outcome] = Pending()
        asked.then(partial(self._swapped, resource, new, outcome))
        return outcome

    def _fence(self, key: tuple[str, int], rows: Rows) -> Request | None:
        return self._table.request("seated", *key) if rows[0][APPLIED] else None

    def _swapped(
        self,
        resource: Resource,
        new: Found,
        outcome: Pending[Outcome],
        asked: Pending[list[Rows]],
    ) -> None:
        if asked.error is not None:
            outcome.fail(asked.error)
            return
        rows, *more = asked.result()
        try:
            if not rows[0][APPLIED]:
                state = self._seen(found_of(rows[0]))
                outcome.resolve((False, state if state.mark.found.settled else None))
                return
        except Exception as exc:  # noqa: BLE001 - a damaged record; whoever asked is told
            outcome.fail(exc)
            return
        for row in more[0] if more else ():
            if row["version"] == new.version:
                new = settled(new, row["seated"])
        if new.settled:
            outcome.resolve((True, _state(new)))
        else:  # that replica has not heard of it yet
            self.load(resource).then(partial(_still, new, outcome))

    def _loaded(self, answers: list[Rows]) -> State:
        rows = answers[0]
        return self._seen(found_of(rows[0] if rows else None))

    def _seen(self, found: Found) -> State:
        version, record = found.version, found.record
        if version is not None and record is not None:
            written = Written(found.frame or 0, record.updated, self.clock())
            self._memory.add(version, written)
        return _state(found)

    def _key(self, resource: Resource) -> tuple[str, int]:
        kind, number = resource.row
        return self._prefix + kind, number


def _still(new: Found, outcome: Pending[Outcome], loaded: Pending[State]) -> None:
    """Our grant stands there, now with its fence; or nobody knows what it was."""
    state = None if loaded.error is not None else loaded.result()
    if state is not None and state.mark.found.version == new.version:
        outcome.resolve((True, state))
        return
    outcome.fail(BackendUnavailable(what="the grant's fence could not be read"))


def newer(one: State | None, other: State | None) -> State | None:
    """Which of two states of one resource was written later, as far as they tell."""
    if one is None or other is None:
        return one or other
    return one if _frame(one) > _frame(other) else other


def _frame(state: State) -> int:
    found: Found = state.mark.found
    return found.frame or 0


def _burning(found: Found, record: Record, now: int) -> Record:
    """A step over a burn goes on burning: its row is not left empty too soon.

    How long the burn would have lived nobody knows but who made it: the whole time.
    """
    burn = found.version is not None and found.record is None and found.ticket is None
    if not burn:
        return record
    extra = (*record.extra, (BURNT, now + micros(BURN)))
    return replace(record, extra=extra)


def burnt_until(record: Record) -> int:
    """Until when the row must not be left empty, in its own time; 0: it may be."""
    until = dict(record.extra).get(BURNT)
    return until if isinstance(until, int) else 0


def _state(found: Found) -> State:
    return State(found.record, found.seat, _Mark(found.condition, found))


def _mapped(pending: Pending[A], change: Callable[[A], B]) -> Pending[B]:
    changed: Pending[B] = Pending()

    def done(pending: Pending[A]) -> None:
        try:
            changed.resolve(change(pending.result()))
        except Exception as exc:  # noqa: BLE001 - handed on to whoever awaits
            changed.fail(exc)

    pending.then(done)
    return changed
