"""The lock table as a compare-and-set store (``cas.CasStore``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from aiorwlock_remote.backends.cassandra import read_back, rows
from aiorwlock_remote.backends.cassandra.read_back import Ballot, Ballots
from aiorwlock_remote.backends.cassandra.rows import CassandraRow
from aiorwlock_remote.backends.cassandra.session_client import (
    APPLIED,
    PendingRows,
    Row,
    Rows,
)
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.cas import (
    CasStore,
    StepTimes,
    StoredState,
    SwapReply,
    VersionClock,
    WrittenAt,
    map_pending,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import after_change, without_proof
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import BackendUnavailable, BadRecord
from aiorwlock_remote.ports import EventLoop, Pending

# How often a row is read that others change while a grant is removed from it.
MAX_LOOKS = 3


@value
class _RowMark:
    condition: tuple[UUID | None, str | None, int | None] = field(repr=False)
    found: CassandraRow = field(compare=False)
    written: WrittenAt | None = field(default=None, compare=False)


@dataclass(slots=True)
class _Swap:
    """State of one swap until its outcome is known.

    ``unseen``: the swap admits a grant that must be read back before it is reported.
    ``foreign``: the swap removes a mutex record that another program wrote. ``early``:
    the read of the Paxos timestamp (the fence), if it was sent right after the
    transaction, without waiting for the transaction's answer; else None.
    """

    resource: Resource
    found: CassandraRow
    new: CassandraRow
    written: WrittenAt | None
    outcome: Pending[SwapReply]
    unseen: bool
    foreign: bool
    node: object = None
    looks: int = 0


class CassandraCas(CasStore):
    """Compare-and-set store: a swap is one transaction, a load one SERIAL read.

    Invariants, with the test that fails without each:

    * A grant in a new row, or of a mutex that was free, is reported only after a read
      has shown all columns of the row: the read gives the fence, and shows whether a
      write of another program hides the grant (test_future_writes.py).
    * A grant of a mutex that changes hands needs no read: the transaction compared the
      mutex record with what a client of this library had written, so nothing hid it
      (test_a_successor_has_a_higher_fence).
    * While a row has a provisional fence (1, because the true fence, a Paxos timestamp,
      is not known yet), no further fence is counted from it
      (test_a_reader_of_another_process_gets_the_true_fence).
    * If a swap fails after its transaction was carried out, no grant of the swap stays
      in the row (test_writes_that_hide_a_grant_for_an_hour).
    """

    def __init__(
        self, table: Table, loop: EventLoop, memory: VersionClock | None = None
    ) -> None:
        """Create the store over ``table``; its replies come in the event loop ``loop``.

        ``memory``: cache of when versions of rows were seen, to share by all such
        stores of a process; None: a new one.
        """
        super().__init__(loop.clock)
        self._table = table
        self._loop = loop
        self._memory = memory or VersionClock(table.options.clock_skew)
        self._ballots = Ballots(table, loop)

    def guess(self) -> StoredState:
        return _FREE

    def times(self, state: StoredState) -> StepTimes:
        clock, written = self.local_clock, state.mark.written
        if written is None and state.record is not None:
            # A row of a list, or one without a version: as if it was seen just now.
            frame = state.mark.found.frame or 0
            written = WrittenAt(frame, state.record.updated, self.clock())
        return self._memory.times(written, clock)

    def load(self, resource: Resource) -> Pending[StoredState]:
        request = self._table.request("load", *resource.row)
        return map_pending(self._table.ask(self._loop, request), self._loaded)

    def peek(self, resource: Resource) -> Pending[StoredState]:
        """Read the committed state by a plain read, which delays no transaction."""
        request = self._table.request("peek", *resource.row)
        return map_pending(self._table.ask(self._loop, request), self._loaded)

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[SwapReply]:
        del wakes  # this store cannot notify: clients poll
        found: CassandraRow = state.mark.found
        key = resource.row
        new, name, values = rows.change_statement(
            key, found, record, seat, times.now, times.wall
        )
        outcome: Pending[SwapReply] = Pending()
        if not (found.settled or rows.needs_no_fence(found, new)):
            # The row has to be loaded first, which shows the ballot to count from.
            outcome.set_result((False, None))
            return outcome
        # Without a version two changes of the row would not exclude each other.
        stay = set(rows.tickets_of(found)).intersection(rows.tickets_of(new))
        if found.version is None and stay:
            outcome.set_exception(_no_version_error(resource))
            return outcome
        written = None
        if new.version is not None:
            written = self._memory.wrote(new.version.int, times)
        # A seat of ours that the transaction compares is visible, and a fence that is
        # counted from a settled one is known: then no read has to follow.
        known = found.ours and found.version is not None
        unseen = rows.admits(found, new) and not (known and new.settled)
        # Another program's plain write may have a time that is ahead, and then survives
        # the transaction (test_a_foreign_seat_that_cannot_be_removed).
        foreign = found.seat is not None and not found.ours and new.seat is None
        swap = _Swap(resource, found, new, written, outcome, unseen, foreign)
        asked = self._table.ask(self._loop, self._table.request(name, *values))
        asked.add_done_callback(lambda _: self._swapped(swap, asked))
        return outcome

    def _swapped(self, swap: _Swap, asked: PendingRows) -> None:
        outcome, swap.node = swap.outcome, asked.node
        if asked.error is not None:
            outcome.set_exception(asked.error)
            return
        try:
            row = asked.result()[0]
            if not row[APPLIED]:
                state = self._seen(rows.parse_row(row))
                outcome.set_result((False, state if state.mark.found.settled else None))
                return
        except Exception as exc:  # noqa: BLE001 - a damaged record, handed to the caller
            outcome.set_exception(exc)
            return
        if swap.foreign:
            self._look(swap)
        elif not swap.unseen:
            outcome.set_result((True, _state(swap.new, swap.written)))
        else:
            self._read_ballot(swap)

    def _read_ballot(self, swap: _Swap) -> None:
        key, version = swap.resource.row, swap.new.version
        assert version is not None, "a row with a grant has a version"
        self._ballots.read(key, version, swap.node).add_done_callback(
            partial(self._ballot_read, swap)
        )

    def _ballot_read(self, swap: _Swap, read: Pending[Ballot]) -> None:
        if read.error is not None:
            # The transaction was carried out, whatever the error says of the read.
            swap.outcome.set_exception(without_proof(read.error))
            return
        ballot = read.result()
        if ballot is not None:
            new = rows.settled(swap.new, ballot)
            swap.outcome.set_result((True, _state(new, swap.written)))
        else:  # that replica has not got it yet, it was changed since, or it is hidden
            self._look(swap)

    def _look(self, swap: _Swap) -> None:
        swap.looks += 1
        request = self._table.request("load_written", *swap.resource.row)
        asked = self._table.ask(self._loop, request)
        asked.add_done_callback(lambda _: self._looked(swap, asked))

    def _looked(self, swap: _Swap, asked: PendingRows) -> None:
        if asked.error is not None:
            # As above: the error is that of the read.
            swap.outcome.set_exception(without_proof(asked.error))
            return
        found, wall = asked.result(), micros(self._loop.clock.wall())
        row = found[0] if found else None
        if swap.foreign:
            seat = None if row is None else read_back.condition_of(row)[1:]
            if row is not None and seat == swap.found.condition[1:]:
                error = read_back.unremoved_seat_error(swap.resource, row, wall)
                swap.outcome.set_exception(error)
            else:
                swap.outcome.set_result((True, _state(swap.new, swap.written)))
            return
        seen = read_back.visible_row(swap.new, row)
        if seen is not None:
            swap.outcome.set_result((True, self._seen(seen)))
            return
        error = read_back.gone_grant_error(swap.resource, swap.new, row, wall)
        # If nothing of the grant is left, there is nothing to remove.
        if row is None or not read_back.is_left_over(swap.new, row):
            swap.outcome.set_exception(error)
        else:
            self._undo(swap, row, error)

    def _undo(self, swap: _Swap, row: Row, error: BackendUnavailable) -> None:
        # Removes what the row shows of a hidden grant, then fails with the error. Queue
        # entries go with it; clients that wait make theirs again.
        new = swap.new
        assert new.record is not None
        assert new.frame is not None
        key, condition = swap.resource.row, read_back.condition_of(row)
        name = "update_record"
        values: tuple[object, ...] = (
            None,
            None,
            None,
            *key,
            *condition,
            *rows.NEVER_STORED,
        )
        if row["ticket"] in (None, new.ticket):  # otherwise another program's seat
            micros_left = rows.placeholder_until(new.record) - new.frame
            _, name, values = rows.removal(key, condition, micros_left)
        asked = self._table.ask(self._loop, self._table.request(name, *values))

        def undone(_: Pending[Rows]) -> None:
            if asked.error is not None:
                swap.outcome.set_exception(without_proof(asked.error))
            elif asked.result()[0][APPLIED]:
                swap.outcome.set_exception(error)
            elif swap.looks < MAX_LOOKS:
                self._look(swap)
            else:
                swap.outcome.set_exception(after_change(error))

        asked.add_done_callback(undone)

    def _loaded(self, found: Rows) -> StoredState:
        return self._seen(rows.parse_row(found[0] if found else None))

    def _seen(self, found: CassandraRow) -> StoredState:
        record, written = found.record, None
        if record is not None:
            times = found.frame or 0, record.updated
            written = self._memory.read(_clock_key(found), *times, self.local_clock)
        return _state(found, written)


def state_of_row(row: Row) -> StoredState:
    """Return the state in a row of a table scan; do not cache its version."""
    return _state(rows.parse_row(row))


def _clock_key(found: CassandraRow) -> int:
    # By the time if another program removed the version. Time has to go on in that
    # case, too: otherwise a renewal that changes nothing would be believed for longer
    # than the row says.
    # As a number: a UUID is hashed by Python code.
    return (found.frame or 0) if found.version is None else found.version.int


def _no_version_error(resource: Resource) -> BadRecord:
    return BadRecord(
        what=f"{resource.label}: another program took the row's version away",
        hint="the lock can be acquired again when its holders have left",
        retry_after=rows.RETRY_INTERVAL,
    )


def _state(found: CassandraRow, written: WrittenAt | None = None) -> StoredState:
    if found is rows.NO_ROW:
        return _FREE
    mark = _RowMark(found.condition, found, written)
    return StoredState(found.record, found.seat, mark, found.frame or 0)


_FREE = StoredState(None, None, _RowMark(rows.NO_ROW.condition, rows.NO_ROW))
