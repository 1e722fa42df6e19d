"""What a row shows of a grant that was just written.

A plain write of another program (no lightweight transaction) carries a time of that
program's clock. If that clock is ahead, the write hides what transactions write to the
same cells until that time has passed: a cell that was set to null stays null, and a row
that was deleted is not there, although the transaction was carried out. Such a grant
excludes nobody, so nobody is told of it, and what the row shows of it is removed
(``tests/backends/cassandra/test_writes_ahead.py``).
"""

from __future__ import annotations

from collections import Counter

from aiorwlock_remote.backends.cassandra.ballots import TIMES, whole
from aiorwlock_remote.backends.cassandra.changes import tickets_of
from aiorwlock_remote.backends.cassandra.requests import Row
from aiorwlock_remote.backends.cassandra.rows import (
    LOOK_AGAIN,
    CassandraRow,
    found_of,
    millis_of,
    settled,
)
from aiorwlock_remote.core.lease import MICROS
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import READERS
from aiorwlock_remote.errors import BackendUnavailable, BadRecord

HINT = (
    "set that program's clock, and let it write by transactions (IF …): "
    "the lock can be had when the time of its write has passed"
)


def shown(new: CassandraRow, row: Row | None) -> CassandraRow | None:
    """What stands there, if the grants of ``new`` do, with their seat and fences.

    Whoever queued up since has changed the row, and found the seat as it was written.
    """
    if row is None:
        return None
    if row["version"] == new.version:
        ballot = whole(row)
        return None if ballot is None else settled(new, ballot)
    try:
        found = found_of(row)
    except BadRecord:
        return None
    record = found.record
    if record is None or found.version is None or not found.ours:
        return None
    return found if all(record.grant(ticket) for ticket in tickets_of(new)) else None


def left_of(new: CassandraRow, row: Row) -> bool:
    """Whether a row that does not show its grants shows anything of ``new``.

    Others may have stepped over it meanwhile: they voided the grants and left the seat,
    which they took for another program's (``test_others_queue_behind_what_is_left``).
    """
    if row["version"] == new.version:
        return True
    try:
        found = found_of(row)
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


def not_shown(resource: Resource, row: Row | None, wall: int) -> BackendUnavailable:
    """The error for whoever asked; nothing of the grant is left."""
    what = f"{resource.label}: the grant was gone before its fence was read"
    cells, ahead = _hidden(row)
    if row is None:
        cause = (
            "the row is not there; a plain DELETE of a program whose clock is ahead "
            "hides it, or the lock was broken"
        )
    elif cells:
        cause = (
            f"{' and '.join(cells)} cannot be seen; a plain write of a program whose "
            f"clock is ahead{_by(ahead, wall)} hides what is written"
        )
    else:
        return BackendUnavailable(what=what, nothing_done=True, retry_after=LOOK_AGAIN)
    return BackendUnavailable(
        what=f"{what}: {cause}",
        hint=HINT,
        nothing_done=True,
        retry_after=_seconds(ahead, wall) or LOOK_AGAIN,
    )


def not_removed(resource: Resource, row: Row, wall: int) -> BackendUnavailable:
    """The error for whoever released or broke a seat that stands as it stood."""
    at: int = row["seated"]
    return BackendUnavailable(
        what=f"{resource.label}: ticket stands as it stood; it is a plain write of a "
        f"program whose clock is ahead{_by(at, wall)}",
        hint=HINT,
        nothing_done=True,
        retry_after=_seconds(at, wall) or LOOK_AGAIN,
    )


def _hidden(row: Row | None) -> tuple[list[str], int]:
    """Which cells do not show what was written with the others; their latest time."""
    if row is None:
        return [], 0
    times = {cell: row[time] for cell, time in TIMES.items()}
    counted = Counter(time for time in times.values() if time is not None)
    ballot = counted.most_common(1)[0][0] if counted else None
    hidden = {cell: time for cell, time in times.items() if time != ballot}
    return list(hidden), max((time or 0 for time in hidden.values()), default=0)


def _seconds(at: int, wall: int) -> float:
    return max(0, at - wall) / MICROS


def _by(at: int, wall: int) -> str:
    seconds = _seconds(at, wall)
    return f" by {seconds:.1f} s" if seconds else ""
