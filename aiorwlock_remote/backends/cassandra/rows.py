"""A row of the table ↔ the record and the seat that the core knows.

The seat's value is ``ticket,seconds``, as in every store; a published program's row
has milliseconds, which come after a point. Ours are whole seconds.

Fences are counted from the ballot that made the row (``docs/stores/cassandra.md``). The
first grant of a row has the *provisional* fence 1, since nobody knows a ballot before
it is chosen; whoever knows it, counts on from there (``settled``).

From what stood in a row to what is to stand there: the statement that does it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.backends.cassandra.session_client import Row
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import BadRecord

PROVISIONAL_LIMIT = 1 << 32
"""Fences below are provisional; a ballot is in microseconds since 1970."""

RETRY_INTERVAL = 0.25
"""Seconds between two tries while it cannot be seen when a row will be whole again."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLI = timedelta(milliseconds=1)


@value
class CassandraRow:
    """A row as it stands, or stood. Nothing at all: every field is None.

    ``frame`` and ``record.updated`` say when it was written, see ``frame.py``.
    ``since``: the seat's ``acquired_at`` in milliseconds.
    """

    version: UUID | None = None
    ticket: str | None = field(default=None, repr=False)
    since: int | None = None
    record: Doorman | None = None
    frame: int | None = None

    @property
    def seat(self) -> MutexRecord | None:
        """The published mutex record; no lease, since the record knows it."""
        if self.ticket is None:
            return None
        return MutexRecord(f"{self.ticket},{_format_seconds(self.since or 0)}")

    @property
    def condition(self) -> tuple[UUID | None, str | None, int | None]:
        """What a step from here compares: version, ticket, acquired_at."""
        return self.version, self.ticket, self.since

    @property
    def ours(self) -> bool:
        """Whether the seat is the one that the record tells of."""
        seat = self.seat
        return (
            seat is not None
            and self.record is not None
            and seat.value == self.record.seat
        )

    @property
    def settled(self) -> bool:
        """Whether its fences can be counted on from."""
        return self.record is None or not 0 < self.record.last < PROVISIONAL_LIMIT


NO_ROW = CassandraRow()


def parse_row(row: Row | None) -> CassandraRow:
    """What a read or a refusal tells. Its fences are settled if it tells the ballot.

    Raises:
        BadRecord: the record cannot be read.
    """
    if row is None or "record" not in row:  # a refusal by nothing tells nothing
        return NO_ROW
    at, text, frame = row["acquired_at"], row["record"], row["frame"]
    # The statements' `frame != -1` would refuse every step from such a row, for ever.
    if (frame is None and text is not None) or (frame is not None and frame < 0):
        raise BadRecord(
            what="the stored record has no time",
            hint="delete the row if nobody is in",
            retry_after=RETRY_INTERVAL,
        )
    found = CassandraRow(
        version=row["version"],
        ticket=row["ticket"],
        since=None if at is None else millis_of(at),
        record=None if text is None else loads(text),
        frame=frame,
    )
    return settled(found, row.get("seated"))


def settled(found: CassandraRow, ballot: int | None) -> CassandraRow:
    """With its provisional fences counted from the ballot of its seat.

    If another program took the seat away or sits there, the next ballot of ours counts:
    that program's clock may be ahead, and fences would fall when the row is made anew.
    """
    if found.settled or found.record is None:
        return found
    if not found.ours:
        return replace(found, record=replace(found.record, last=0))
    if ballot is None:
        return found
    return replace(found, record=counted_from(found.record, ballot))


def counted_from(record: Doorman, ballot: int) -> Doorman:
    """Provisional fences made true: the first one is the ballot itself."""

    def true(fence: int) -> int:
        return fence + ballot - 1 if 0 < fence < PROVISIONAL_LIMIT else fence

    grants = tuple(replace(g, fence=true(g.fence)) for g in record.grants)
    endings = tuple(replace(e, fence=true(e.fence)) for e in record.endings)
    return replace(record, last=true(record.last), grants=grants, endings=endings)


def seat_columns(seat: MutexRecord) -> tuple[str, int]:
    """What is to be written of a seat: ticket, ``acquired_at`` in milliseconds."""
    ticket, _, seconds = seat.value.rpartition(",")
    whole, _, rest = seconds.partition(".")
    return ticket, int(whole) * 1000 + int(rest or 0)


def _format_seconds(millis: int) -> str:
    whole, rest = divmod(millis, 1000)
    return f"{whole}.{rest:03}" if rest else str(whole)


def millis_of(at: datetime) -> int:
    """``acquired_at`` in milliseconds since 1970."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // _MILLI  # the driver's is naive, in UTC


TOMBSTONE_SECONDS = 15
"""Seconds for which an empty row refuses what may still be on its way."""
BURNT_UNTIL = "burnt_until"
NEVER_STORED = "", -1
"""What neither ``record`` nor ``frame`` ever is."""

Change = tuple[CassandraRow, str, tuple[object, ...]]
"""What is to stand there, the name of the statement, its values."""


def change_statement(
    key: tuple[str, int],
    found: CassandraRow,
    record: Doorman,
    seat: MutexRecord | None,
    now: int,
    wall: int,
) -> Change:
    """Put these there; ``now`` in the row's own time. Nothing for nothing is a burn."""
    # The frame and the wall clock are of the same moment, whatever else changes.
    record = _keep_burning(found, record, now)
    if record.updated != wall:
        record = replace(record, updated=wall)
    idle = not (record.grants or record.queue or record.upgrader)
    if idle and record.barred_until <= now:
        return _emptied(key, found, record, seat, now)
    ticket, since = (None, None) if seat is None else seat_columns(seat)
    new = CassandraRow(_new_version(), ticket, since, record, now)
    ours = (new.version, dumps(record), now)
    if found == NO_ROW:
        return new, "appear", (ticket, since, *ours, *key)
    condition = (*found.condition, *_excluded_values(found, new))
    stays = (ticket, since) == (found.ticket, found.since)
    if stays and (found.ours or not admits(found, new)):
        return new, "keep", (*ours, *key, *condition)
    return new, "seat", (ticket, since, *ours, *key, *condition)


def _emptied(
    key: tuple[str, int],
    found: CassandraRow,
    record: Doorman,
    seat: MutexRecord | None,
    now: int,
) -> Change:
    """With nothing of ours to be remembered."""
    if found == NO_ROW:
        new = CassandraRow(_new_version())
        return new, "burn", (TOMBSTONE_SECONDS, new.version, *key)
    if seat is not None:  # a published program's: only ours goes
        ticket, since = seat_columns(seat)
        nothing = (None, None, None)
        new = CassandraRow(ticket=ticket, since=since)
        return new, "keep", (*nothing, *key, *found.condition, *NEVER_STORED)
    return removal(key, found.condition, burnt_until(record) - now)


def removal(key: tuple[str, int], condition: tuple[object, ...], burns: int) -> Change:
    """Leave nothing in its place; a burn, if it has to burn for that long."""
    if burns <= 0:
        return NO_ROW, "vanish", (*key, *condition)
    new = CassandraRow(_new_version())
    burn = (math.ceil(burns / MICROS), new.version)
    return new, "scorch", (*burn, *key, *condition)


def _excluded_values(
    found: CassandraRow, new: CassandraRow
) -> tuple[str | None, int | None]:
    """What ``record`` and ``frame`` must not be, for a swap from there.

    Whoever is let in builds on what this process remembers of the row. If another
    program has taken the record away since, nobody else would know of the grant
    (``test_a_record_that_was_taken_away``). A renewal writes the record anew.
    """
    return (
        NEVER_STORED if found.record is None or not admits(found, new) else (None, None)
    )


def admits(found: CassandraRow, new: CassandraRow) -> bool:
    """Whether the change lets somebody in, or moves a grant."""
    return not set(tickets_of(new)) <= set(tickets_of(found))


def needs_no_fence(found: CassandraRow, new: CassandraRow) -> bool:
    """Whether a change of provisional fences makes no new ones, and moves no seat.

    They are counted from the ballot of the seat, so it has to be the same.
    """
    before, after = found.record, new.record
    if before is None or after is None:
        return True
    stays = (new.ticket, new.since) == (found.ticket, found.since)
    same = (after.last, after.endings) == (before.last, before.endings)
    return stays and same and not admits(found, new)


def tickets_of(found: CassandraRow) -> Iterable[str]:
    """Who holds it."""
    return () if found.record is None else (g.ticket for g in found.record.grants)


def burnt_until(record: Doorman) -> int:
    """Until when the row must not be left empty, in its own time; 0: it may be."""
    until = dict(record.extra).get(BURNT_UNTIL)
    return until if isinstance(until, int) else 0


def _keep_burning(found: CassandraRow, record: Doorman, now: int) -> Doorman:
    """A step over a burn goes on burning: its row is not left empty too soon.

    How long the burn would have lived nobody knows but who made it: the whole time.
    """
    burn = found.version is not None and found.record is None and found.ticket is None
    if not burn:
        return record
    extra = (*record.extra, (BURNT_UNTIL, now + micros(TOMBSTONE_SECONDS)))
    return replace(record, extra=extra)


def _new_version() -> UUID:
    return UUID(bytes=random_id(), version=4)
