"""A row of the table ↔ the record and the seat that the core knows.

The seat's value is ``ticket,seconds``, as in every store; a published program's row
has milliseconds, which come after a point. Ours are whole seconds.

Fences are counted from the ballot that made the row (``docs/stores/cassandra.md``). The
first grant of a row has the *provisional* fence 1, since nobody knows a ballot before
it is chosen; whoever knows it, counts on from there (``settled``).
"""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from aiorwlock_remote.backends.cassandra.requests import Row
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import BadRecord

PROVISIONAL = 1 << 32
"""Fences below are provisional; a ballot is in microseconds since 1970."""

LOOK_AGAIN = 0.25
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
        return MutexRecord(f"{self.ticket},{_seconds(self.since or 0)}")

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
        return self.record is None or not 0 < self.record.last < PROVISIONAL


NOTHING = CassandraRow()


def found_of(row: Row | None) -> CassandraRow:
    """What a read or a refusal tells. Its fences are settled if it tells the ballot.

    Raises:
        BadRecord: the record cannot be read.
    """
    if row is None or "record" not in row:  # a refusal by nothing tells nothing
        return NOTHING
    at, text, frame = row["acquired_at"], row["record"], row["frame"]
    # The statements' `frame != -1` would refuse every step from such a row, for ever.
    if (frame is None and text is not None) or (frame is not None and frame < 0):
        raise BadRecord(
            what="the stored record has no time",
            hint="delete the row if nobody is in",
            retry_after=LOOK_AGAIN,
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
        return fence + ballot - 1 if 0 < fence < PROVISIONAL else fence

    grants = tuple(replace(g, fence=true(g.fence)) for g in record.grants)
    endings = tuple(replace(e, fence=true(e.fence)) for e in record.endings)
    return replace(record, last=true(record.last), grants=grants, endings=endings)


def columns_of(seat: MutexRecord) -> tuple[str, int]:
    """What is to be written of a seat: ticket, ``acquired_at`` in milliseconds."""
    ticket, _, seconds = seat.value.rpartition(",")
    whole, _, rest = seconds.partition(".")
    return ticket, int(whole) * 1000 + int(rest or 0)


def _seconds(millis: int) -> str:
    whole, rest = divmod(millis, 1000)
    return f"{whole}.{rest:03}" if rest else str(whole)


def millis_of(at: datetime) -> int:
    """``acquired_at`` in milliseconds since 1970."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // _MILLI  # the driver's is naive, in UTC
