"""Reading ballots, of which fences are made: many at a time.

All that are wanted in one turn of the loop are asked for together, so that many locks
that are taken at the same time cost few reads. Each is read at the node that its
transaction went to, which knows it first.

What a row shows of a grant that was just written.

A plain write of another program (no lightweight transaction) carries a time of that
program's clock. If that clock is ahead, the write hides what transactions write to the
same cells until that time has passed: a cell that was set to null stays null, and a row
that was deleted is not there, although the transaction was carried out. Such a grant
excludes nobody, so nobody is told of it, and what the row shows of it is removed
(``tests/backends/cassandra/test_writes_ahead.py``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra.rows import (
    RETRY_INTERVAL,
    CassandraRow,
    millis_of,
    parse_row,
    settled,
    tickets_of,
)
from aiorwlock_remote.backends.cassandra.session_client import Row, Rows
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import READERS
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, Unsupported
from aiorwlock_remote.ports import EventLoop, SocketEventLoop

Key = tuple[str, int]
Ballot = int | None


class BallotRequest(NamedTuple):
    """The ballot of that version of a row; None: it does not stand there as a whole."""

    key: Key
    version: UUID
    ballot: Pending[Ballot]


ROWS_PER_READ = 32
"""Rows that one request reads."""


WRITE_TIMES = {
    "ticket": "seated",
    "acquired_at": "dated",
    "version": "versioned",
    "record": "recorded",
    "frame": "framed",
}
"""The cells of a row of ours, and what ``seated`` calls the times of their writes."""

MAX_GRANTS_BETWEEN_TRIES = 255
"""Grants between two tries of what never worked."""


class EarlyReadHeuristic:
    """Whether a read right behind a transaction tends to be carried out after it.

    It leaves when that one's answer has come, unless others ask in the meantime, and
    then it is early. So it is in one process that is alone with one node; where it is
    in vain it is tried more and more rarely.
    """

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0

    def tries(self) -> bool:
        """Whether to try it now."""
        self._left -= 1
        return self._left < 0

    def learns(self, *, hit: bool) -> None:
        """What came out."""
        self._pause = 0 if hit else min(2 * self._pause + 1, MAX_GRANTS_BETWEEN_TRIES)
        self._left = self._pause


class Ballots:
    """The rows of ``seated``. Belongs to one thread."""

    def __init__(self, table: Table, host: EventLoop) -> None:
        """Nothing is sent yet."""
        self._table = table
        self._host = host
        self._soon = (
            host.at_end if isinstance(host, SocketEventLoop) else host.call_soon
        )
        self._wanted: dict[object, list[BallotRequest]] = {}  # by whom to ask
        self._together = True
        self._luck = EarlyReadHeuristic()

    def early(self, key: Key, version: UUID) -> Pending[Ballot] | None:
        """Ask right behind the transaction, if that tends to be late enough.

        ``learn`` is to be told whether it was.
        """
        if not self._luck.tries():
            return None
        wanted = BallotRequest(key, version, Pending())
        self._one(wanted, behind=True)
        return wanted.ballot

    def learn(self, *, hit: bool) -> None:
        """What came of what was asked early."""
        self._luck.learns(hit=hit)

    def read(self, key: Key, version: UUID, node: object) -> Pending[Ballot]:
        """What one replica says; it is asked for all that is wanted in this turn.

        None: that version is unheard of there, or does not stand any more, or another
        program's write hides a part of it. ``node``: who was asked for the transaction.
        Fails with ``BackendError``.
        """
        if not self._wanted:
            self._soon(self._ask)
        wanted = BallotRequest(key, version, Pending())
        self._wanted.setdefault(node, []).append(wanted)
        return wanted.ballot

    def _ask(self) -> None:
        asked, self._wanted = self._wanted, {}
        for node, wanted in asked.items():
            if self._together:
                for group in grouped(wanted):
                    self._all(group, node)
            else:
                self._each(wanted)

    def _each(self, wanted: Sequence[BallotRequest]) -> None:
        for one in wanted:
            self._one(one)

    def _one(self, wanted: BallotRequest, *, behind: bool = False) -> None:
        request = self._table.request("seated", *wanted.key)
        request = replace(request, behind=behind) if behind else request
        self._table.ask(self._host, request).add_done_callback(
            partial(_settle_requests, (wanted,))
        )

    def _all(self, wanted: Sequence[BallotRequest], node: object) -> None:
        if len(wanted) == 1:
            self._each(wanted)
            return
        types = sorted({one.key[0] for one in wanted})
        numbers = sorted({one.key[1] for one in wanted})
        request = self._table.request("seated_all", types, numbers).to(node)
        self._table.ask(self._host, request).add_done_callback(
            partial(self._told_all, wanted)
        )

    def _told_all(self, wanted: Sequence[BallotRequest], asked: Pending[Rows]) -> None:
        if isinstance(asked.error, Unsupported):
            self._together = False  # a guardrail of the server, perhaps
            self._each(wanted)
        else:
            _settle_requests(wanted, asked)


def grouped(wanted: Sequence[BallotRequest]) -> Iterable[Sequence[BallotRequest]]:
    """Sets that one request names, and nothing else: of one type, or of one number."""
    many = Counter(one.key[0] for one in wanted)
    groups: dict[object, list[BallotRequest]] = defaultdict(list)
    for one in wanted:
        kind, number = one.key
        groups[kind if many[kind] > 1 else number].append(one)
    for group in groups.values():
        for start in range(0, len(group), ROWS_PER_READ):
            yield group[start : start + ROWS_PER_READ]


def whole_ballot(row: Row) -> Ballot:
    """The ballot that wrote all cells of the row; None: not one wrote them all."""
    ballot: Ballot = row["seated"]
    same = all(row[time] == ballot for time in WRITE_TIMES.values())
    return ballot if same else None


def _settle_requests(wanted: Sequence[BallotRequest], asked: Pending[Rows]) -> None:
    if asked.error is not None:
        for one in wanted:
            one.ballot.set_exception(asked.error)
        return
    ballots = {row["version"]: whole_ballot(row) for row in asked.result()}
    for one in wanted:
        one.ballot.set_result(ballots.get(one.version))


CLOCK_AHEAD_HINT = (
    "set that program's clock, and let it write by transactions (IF …): "
    "the lock can be had when the time of its write has passed"
)


def visible_row(new: CassandraRow, row: Row | None) -> CassandraRow | None:
    """What stands there, if the grants of ``new`` do, with their seat and fences.

    Whoever queued up since has changed the row, and found the seat as it was written.
    """
    if row is None:
        return None
    if row["version"] == new.version:
        ballot = whole_ballot(row)
        return None if ballot is None else settled(new, ballot)
    try:
        found = parse_row(row)
    except BadRecord:
        return None
    record = found.record
    if record is None or found.version is None or not found.ours:
        return None
    return found if all(record.grant(ticket) for ticket in tickets_of(new)) else None


def is_left_over(new: CassandraRow, row: Row) -> bool:
    """Whether a row that does not show its grants shows anything of ``new``.

    Others may have stepped over it meanwhile: they voided the grants and left the seat,
    which they took for another program's (``test_others_queue_behind_what_is_left``).
    """
    if row["version"] == new.version:
        return True
    try:
        found = parse_row(row)
    except BadRecord:  # a record without its time
        return row["version"] is None
    if found.ticket == new.ticket and not found.ours:
        apart = row["dated"] != row["seated"]
        return new.ticket != READERS or apart or found.since == new.since
    if found.version is not None or found.record is None:
        return False
    return any(found.record.grant(ticket) for ticket in tickets_of(new))


def condition_of(row: Row) -> tuple[object, str | None, int | None]:
    """What a change of the row compares, readable or not."""
    at = row["acquired_at"]
    return row["version"], row["ticket"], None if at is None else millis_of(at)


def hidden_grant_error(
    resource: Resource, row: Row | None, wall: int
) -> BackendUnavailable:
    """The error for whoever asked; nothing of the grant is left."""
    what = f"{resource.label}: the grant was gone before its fence was read"
    cells, ahead = _hidden_cells(row)
    if row is None:
        cause = (
            "the row is not there; a plain DELETE of a program whose clock is ahead "
            "hides it, or the lock was broken"
        )
    elif cells:
        cause = (
            f"{' and '.join(cells)} cannot be seen; a plain write of a program whose "
            f"clock is ahead{_ahead_by(ahead, wall)} hides what is written"
        )
    else:
        return BackendUnavailable(
            what=what, nothing_done=True, retry_after=RETRY_INTERVAL
        )
    return BackendUnavailable(
        what=f"{what}: {cause}",
        hint=CLOCK_AHEAD_HINT,
        nothing_done=True,
        retry_after=_seconds_until(ahead, wall) or RETRY_INTERVAL,
    )


def unremoved_seat_error(resource: Resource, row: Row, wall: int) -> BackendUnavailable:
    """The error for whoever released or broke a seat that stands as it stood."""
    at: int = row["seated"]
    return BackendUnavailable(
        what=f"{resource.label}: ticket stands as it stood; it is a plain write of a "
        f"program whose clock is ahead{_ahead_by(at, wall)}",
        hint=CLOCK_AHEAD_HINT,
        nothing_done=True,
        retry_after=_seconds_until(at, wall) or RETRY_INTERVAL,
    )


def _hidden_cells(row: Row | None) -> tuple[list[str], int]:
    """Which cells do not show what was written with the others; their latest time."""
    if row is None:
        return [], 0
    times = {cell: row[time] for cell, time in WRITE_TIMES.items()}
    counted = Counter(time for time in times.values() if time is not None)
    ballot = counted.most_common(1)[0][0] if counted else None
    hidden = {cell: time for cell, time in times.items() if time != ballot}
    return list(hidden), max((time or 0 for time in hidden.values()), default=0)


def _seconds_until(at: int, wall: int) -> float:
    return max(0, at - wall) / MICROS


def _ahead_by(at: int, wall: int) -> str:
    seconds = _seconds_until(at, wall)
    return f" by {seconds:.1f} s" if seconds else ""
