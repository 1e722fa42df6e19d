"""Reads rows after a grant: its Paxos timestamp (the fence), and whether it is visible.

A plain write of another program (no lightweight transaction) has a time of that
program's clock. If that clock is ahead, the write hides what transactions write to the
same columns until that time has passed: a column that was set to null stays null, and a
row that was deleted is missing, although the transaction was carried out. Such a grant
excludes no other client, so its caller gets an error, and what the row shows of the
grant is removed (``tests/backends/cassandra/test_future_writes.py``).
"""

from __future__ import annotations

import logging
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
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

Key = tuple[str, int]
Ballot = int | None

ROWS_PER_READ = 32

# The cells of our rows, and what the statements call the ballot that wrote each.
WRITE_TIMES = {
    "ticket": "ticket_written",
    "acquired_at": "acquired_at_written",
    "version": "version_written",
    "record": "record_written",
    "frame": "frame_written",
}

CLOCK_AHEAD_HINT = (
    "set that program's clock, and let it write by transactions (IF …): "
    "the lock can be acquired when the time of its write has passed"
)


class BallotRequest(NamedTuple):
    """Request for the Paxos timestamp of the transaction that wrote a version of a row.

    ``key`` is the row's primary key, ``version`` the version. ``ballot`` is settled
    with the timestamp (µs since 1970), or with None if a replica does not show that
    version, or only a part of it.
    """

    key: Key
    version: UUID
    ballot: Pending[Ballot]


class Ballots:
    """Reads the Paxos timestamps (fences) of granted rows, many with one request.

    For one thread. Reads that are requested in one turn of the event loop are sent
    together, to the node that carried out the transactions: it knows the timestamps
    first.
    """

    def __init__(self, table: Table, loop: EventLoop) -> None:
        self._table = table
        self._loop = loop
        self._wanted: dict[object, list[BallotRequest]] = {}  # by node
        self._together = True

    def read(self, key: Key, version: UUID, node: object) -> Pending[Ballot]:
        """Read the Paxos timestamp of the transaction that wrote a version of a row.

        ``key`` is the row's primary key. The request is sent at the end of the event
        loop's turn, to ``node``, the host that carried out the transaction. The result
        is None if the version is unknown to the replica, was replaced, or is hidden in
        part by another program's write. It fails with ``BackendError``.
        """
        if not self._wanted:
            # At the end of a turn all grants of the turn are known.
            self._loop.call_soon(self._read_wanted)
        wanted = BallotRequest(key, version, Pending())
        self._wanted.setdefault(node, []).append(wanted)
        return wanted.ballot

    def _read_wanted(self) -> None:
        requests, self._wanted = self._wanted, {}
        for node, wanted in requests.items():
            if self._together:
                for group in grouped(wanted):
                    self._read_group(group, node)
            else:
                self._read_each(wanted)

    def _read_each(self, wanted: Sequence[BallotRequest]) -> None:
        for one in wanted:
            self._read_one(one)

    def _read_one(self, wanted: BallotRequest) -> None:
        request = self._table.request("read_ballot", *wanted.key)
        self._table.ask(self._loop, request).add_done_callback(
            partial(_settle_requests, (wanted,))
        )

    def _read_group(self, wanted: Sequence[BallotRequest], node: object) -> None:
        if len(wanted) == 1:
            self._read_each(wanted)
            return
        types = sorted({one.key[0] for one in wanted})
        numbers = sorted({one.key[1] for one in wanted})
        request = self._table.request("read_ballots", types, numbers)
        request = replace(request, node=node)
        self._table.ask(self._loop, request).add_done_callback(
            partial(self._group_read, wanted)
        )

    def _group_read(
        self, wanted: Sequence[BallotRequest], asked: Pending[Rows]
    ) -> None:
        if isinstance(asked.error, Unsupported):
            # A guardrail of the server may forbid to select several partitions.
            self._together = False
            self._read_each(wanted)
        else:
            _settle_requests(wanted, asked)


def grouped(wanted: Sequence[BallotRequest]) -> Iterable[Sequence[BallotRequest]]:
    """Yield groups of at most ``ROWS_PER_READ`` requests, each with one type or one id.

    A request reads every combination of its types and ids, so a group with several
    types and several ids would read rows that no request needs.
    """
    many = Counter(one.key[0] for one in wanted)
    groups: dict[object, list[BallotRequest]] = defaultdict(list)
    for one in wanted:
        kind, number = one.key
        groups[kind if many[kind] > 1 else number].append(one)
    for group in groups.values():
        for start in range(0, len(group), ROWS_PER_READ):
            yield group[start : start + ROWS_PER_READ]


def whole_ballot(row: Row) -> Ballot:
    """Return the Paxos timestamp (write time) of all columns; None if they differ."""
    ballot: Ballot = row["ticket_written"]
    same = all(row[time] == ballot for time in WRITE_TIMES.values())
    return ballot if same else None


def _settle_requests(wanted: Sequence[BallotRequest], asked: Pending[Rows]) -> None:
    if asked.error is not None:
        for one in wanted:
            one.ballot.set_exception(asked.error)
        return
    ballots = {row["version"]: whole_ballot(row) for row in asked.result()}
    if log.isEnabledFor(logging.DEBUG):
        missing = [one.key for one in wanted if ballots.get(one.version) is None]
        log_event(log, "ballot_read", logging.DEBUG, rows=len(wanted), missing=missing)
    for one in wanted:
        one.ballot.set_result(ballots.get(one.version))


# ------------------------------------------------------- what a row shows of a grant


def visible_row(new: CassandraRow, row: Row | None) -> CassandraRow | None:
    """Return what a row shows after a transaction, or None if it hides a grant.

    ``new`` is what the transaction wrote, ``row`` what was read afterwards: the same
    version, or a later one, by a client that saw the grants. Return ``row``, with final
    fences, if it shows all grants of ``new``.
    """
    if row is None:
        return None
    if row["version"] == new.version:
        ballot = whole_ballot(row)
        return None if ballot is None else settled(new, ballot)
    found = later_row(new, row)
    whole = found is not None and set(tickets_of(new)) <= set(tickets_of(found))
    return found if whole else None


def later_row(new: CassandraRow, row: Row) -> CassandraRow | None:
    """Return ``row`` if a client of this library changed it after it had seen ``new``.

    Such a row hides nothing: a grant of ``new`` that it lacks expired or was broken.
    Return None if ``row`` is what ``new`` wrote, or has cells of another program.
    """
    if row["version"] in (None, new.version):
        return None
    try:
        found = parse_row(row)
    except BadRecord:
        return None
    return found if found.record is not None and found.ours else None


def is_left_over(new: CassandraRow, row: Row) -> bool:
    """Return True if ``row``, which hides a grant of ``new``, shows parts of ``new``.

    ``new`` is what a transaction wrote, ``row`` what was read afterwards. Meanwhile
    other clients may have voided the grants and left the mutex record, because they
    took it for another program's (``test_others_queue_behind_what_is_left``).
    """
    if row["version"] == new.version:
        return True
    try:
        found = parse_row(row)
    except BadRecord:  # a record without its time
        return row["version"] is None
    if found.ticket == new.ticket and not found.ours:
        # All seats of readers have one ticket: ours differ in their time.
        apart = row["acquired_at_written"] != row["ticket_written"]
        return new.ticket != READERS or apart or found.since == new.since
    if found.version is not None or found.record is None:
        return False
    return any(found.record.grant(ticket) for ticket in tickets_of(new))


def condition_of(row: Row) -> tuple[object, str | None, int | None]:
    """Return what a swap compares of a row: version, ticket, ``acquired_at`` (ms)."""
    at = row["acquired_at"]
    return row["version"], row["ticket"], None if at is None else millis_of(at)


def gone_grant_error(
    resource: Resource, new: CassandraRow, row: Row | None, wall: int
) -> BackendUnavailable:
    """Return the error for a grant of ``new`` that ``row`` does not show.

    Either it expired or was broken, and the error does not say ``nothing_done`` if
    others of ``new`` are still there; or another program's write hid it, and it was
    removed. ``row`` is what a read showed after the transaction (None: no row),
    ``wall`` our wall clock (µs), from which the message counts how far the other
    program's clock is ahead.
    """
    later = None if row is None else later_row(new, row)
    if later is not None:
        return BackendUnavailable(
            what=f"{resource.label}: a grant expired or was broken before its fence "
            "was read",
            nothing_done=set(tickets_of(new)).isdisjoint(tickets_of(later)),
            retry_after=RETRY_INTERVAL,
        )
    what = f"{resource.label}: the grant was gone before its fence was read"
    cells, ahead = _hidden_cells(row)
    if row is None:
        cause = (
            "the row is missing; a plain DELETE of a program whose clock is ahead "
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
    """Return the error for a release that cannot remove a foreign mutex record.

    ``row`` is what a read showed after the transaction, ``wall`` our wall clock (µs),
    from which the message counts how far the other program's clock is ahead.
    """
    at: int = row["ticket_written"]
    return BackendUnavailable(
        what=f"{resource.label}: ticket is unchanged; it is a plain write of a "
        f"program whose clock is ahead{_ahead_by(at, wall)}",
        hint=CLOCK_AHEAD_HINT,
        nothing_done=True,
        retry_after=_seconds_until(at, wall) or RETRY_INTERVAL,
    )


def _hidden_cells(row: Row | None) -> tuple[list[str], int]:
    # The cells that were not written with the others, and their latest time.
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
