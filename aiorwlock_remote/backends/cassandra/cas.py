"""The table as a store that compares and sets (``swapping.Cas``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from aiorwlock_remote.backends.cassandra.ballots import Ballot, Ballots
from aiorwlock_remote.backends.cassandra.changes import (
    change,
    needs_no_fence,
    tickets_of,
)
from aiorwlock_remote.backends.cassandra.frame import Memory, Written, now_of
from aiorwlock_remote.backends.cassandra.pages import Asked
from aiorwlock_remote.backends.cassandra.requests import APPLIED, Row, Rows
from aiorwlock_remote.backends.cassandra.rows import NOTHING, Found, found_of, settled
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.doubt import after_doubt
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.record import Record, Seat
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import Pending, mapped
from aiorwlock_remote.ports import Host
from aiorwlock_remote.swapping import State, Times

Outcome = tuple[bool, State | None]


@value
class _Mark:
    """A version; rows of published programs have none, and are told by their seat."""

    condition: tuple[UUID | None, str | None, int | None] = field(repr=False)
    found: Found = field(compare=False)


@dataclass(slots=True)
class _Swap:
    """One on its way.

    ``unread``: a fence of it will be seen, and nobody knows it yet. ``early``: what was
    asked right behind it, if anything was. ``node``: who answered.
    """

    resource: Resource
    new: Found
    outcome: Pending[Outcome]
    unread: bool
    early: Pending[Ballot] | None = None
    node: object = None


class CassandraCas:
    """Each swap is one lightweight transaction, each load a SERIAL read.

    A grant from nothing is followed by a read of its fence, see ``rows.py``; not if
    all who hold it are ``unfenced``, tickets whose fences nobody will see.
    """

    def __init__(
        self,
        table: Table,
        host: Host,
        memory: Memory | None = None,
    ) -> None:
        """``memory``: of what this process wrote and saw, shared by its threads."""
        self._table = table
        self._host = host
        skew = table.options.clock_skew
        self._skew = micros(skew) if skew < float("inf") else None
        self._memory = memory or Memory()
        self.unfenced: set[str] = set()
        self._ballots = Ballots(table, host)
        self._under_way = 0

    def guess(self) -> State:
        """Nothing."""
        return _FREE

    def clock(self) -> int:
        """The boot clock."""
        return micros(self._host.clock.now())

    def times(self, state: State) -> Times:
        """The least the time of the row's frame can be; fences count by one."""
        found: Found = state.mark.found
        at, wall = self.clock(), micros(self._host.clock.wall())
        if found.version is None or found.record is None:
            return Times(wall, 0, wall, at)  # a new frame, as our wall clock has it
        written = self._memory.get(found.version)
        if written is None:  # forgotten: as if seen just now
            written = Written(found.frame or 0, found.record.updated, at)
        return Times(now_of(written, at, wall, self._skew), 0, wall, at)

    def load(self, resource: Resource) -> Pending[State]:
        """By a SERIAL read."""
        request = self._table.request("load", *resource.row)
        return mapped(self._table.ask(self._host, request), self._loaded)

    def peek(self, resource: Resource) -> Pending[State]:
        """What stood there a moment ago, by a plain read: it disturbs nobody."""
        request = self._table.request("peek", *resource.row)
        return mapped(self._table.ask(self._host, request), self._loaded)

    def read(self, row: Row) -> State:
        """One row of many, which are not remembered: others are waited for."""
        return _state(found_of(row))

    def swap(
        self,
        resource: Resource,
        state: State,
        record: Record,
        seat: Seat | None,
        times: Times,
        wakes: tuple[str, ...] = (),
    ) -> Pending[Outcome]:
        """By the statement that fits; from nothing to nothing it is a burn.

        Nobody can be told anything here: ``wakes`` is for other stores.
        """
        del wakes
        found: Found = state.mark.found
        key = resource.row
        new, name, values = change(key, found, record, seat, times.now, times.wall)
        outcome: Pending[Outcome] = Pending()
        if not (found.settled or needs_no_fence(found, new)):
            outcome.resolve((False, None))  # to be loaded first
            return outcome
        if new.version is not None:
            written = Written(times.now, times.wall, times.sent)
            self._memory.add(new.version, written)
        unread = not (new.settled or self.unfenced.issuperset(tickets_of(new)))
        swap = _Swap(resource, new, outcome, unread)
        asked = self._table.ask(self._host, self._table.request(name, *values))
        if unread and new.version is not None and not self._under_way:
            swap.early = self._ballots.early(key, new.version)
        self._under_way += 1
        asked.then(lambda _: self._swapped(swap, asked))
        return outcome

    def _swapped(self, swap: _Swap, asked: Asked) -> None:
        outcome, swap.node = swap.outcome, asked.node
        outcome.then(self._over)
        if asked.error is not None:
            outcome.fail(asked.error)
            return
        rows = asked.result()
        try:
            if not rows[0][APPLIED]:
                state = self._seen(found_of(rows[0]))
                outcome.resolve((False, state if state.mark.found.settled else None))
                return
        except Exception as exc:  # noqa: BLE001 - a damaged record; whoever asked is told
            outcome.fail(exc)
            return
        if not swap.unread:
            outcome.resolve((True, _state(swap.new)))
        elif swap.early is not None:
            swap.early.then(partial(self._early, swap))
        else:
            self._read(swap)

    def _early(self, swap: _Swap, read: Pending[Ballot]) -> None:
        """What failed can be asked again."""
        new = settled(swap.new, None if read.error else read.result())
        self._ballots.learn(hit=new.settled)
        if new.settled:
            swap.outcome.resolve((True, _state(new)))
        else:
            self._read(swap)

    def _read(self, swap: _Swap) -> None:
        key, version = swap.resource.row, swap.new.version
        assert version is not None, "what is granted has a version"
        self._ballots.read(key, version, swap.node).then(partial(self._told, swap))

    def _told(self, swap: _Swap, read: Pending[Ballot]) -> None:
        if read.error is not None:
            swap.outcome.fail(after_doubt(read.error))  # it was granted before
            return
        new = settled(swap.new, read.result())
        if new.settled:
            swap.outcome.resolve((True, _state(new)))
        else:  # unheard of at that replica, or changed since
            self.load(swap.resource).then(partial(_still, new, swap.outcome))

    def _over(self, _: Pending[Outcome]) -> None:
        self._under_way -= 1

    def _loaded(self, rows: Rows) -> State:
        return self._seen(found_of(rows[0] if rows else None))

    def _seen(self, found: Found) -> State:
        version, record = found.version, found.record
        if version is not None and record is not None:
            written = Written(found.frame or 0, record.updated, self.clock())
            self._memory.add(version, written)
        return _state(found)


def _still(new: Found, outcome: Pending[Outcome], loaded: Pending[State]) -> None:
    """Our grant stands there with its fence, whoever queued since; or it is gone."""
    state = None if loaded.error is not None else loaded.result()
    record = None if state is None else state.record
    granted = () if new.record is None else new.record.grants
    if record is not None and all(record.grant(g.ticket) for g in granted):
        outcome.resolve((True, state))
        return
    error = BackendUnavailable(what="a grant was gone before its fence was read")
    error.__cause__ = loaded.error
    outcome.fail(error)


def newer(one: State | None, other: State | None) -> State | None:
    """Which of two states of one resource was written later, as far as they tell."""
    if one is None or other is None:
        return one or other
    return one if _frame(one) > _frame(other) else other


def _frame(state: State) -> int:
    found: Found = state.mark.found
    return found.frame or 0


def _state(found: Found) -> State:
    if found is NOTHING:
        return _FREE
    return State(found.record, found.seat, _Mark(found.condition, found))


_FREE = State(None, None, _Mark(NOTHING.condition, NOTHING))
