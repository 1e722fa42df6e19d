"""From what stood in a row to what is to stand there: the statement that does it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from uuid import UUID

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.backends.cassandra.rows import NOTHING, CassandraRow, columns_of
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.lease import MICROS, micros
from aiorwlock_remote.core.value import replace

TOMBSTONE_SECONDS = 15
"""Seconds for which an empty row refuses what may still be on its way."""
BURNT = "burnt_until"
ANY = "", -1
"""What neither ``record`` nor ``frame`` ever is."""

Change = tuple[CassandraRow, str, tuple[object, ...]]
"""What is to stand there, the name of the statement, its values."""


def change(
    key: tuple[str, int],
    found: CassandraRow,
    record: Doorman,
    seat: MutexRecord | None,
    now: int,
    wall: int,
) -> Change:
    """Put these there; ``now`` in the row's own time. Nothing for nothing is a burn."""
    # The frame and the wall clock are of the same moment, whatever else changes.
    record = _burning(found, record, now)
    if record.updated != wall:
        record = replace(record, updated=wall)
    idle = not (record.grants or record.queue or record.upgrader)
    if idle and record.barred_until <= now:
        return _left(key, found, record, seat, now)
    ticket, since = (None, None) if seat is None else columns_of(seat)
    new = CassandraRow(_version(), ticket, since, record, now)
    ours = (new.version, dumps(record), now)
    if found == NOTHING:
        return new, "appear", (ticket, since, *ours, *key)
    condition = (*found.condition, *_there(found, new))
    stays = (ticket, since) == (found.ticket, found.since)
    if stays and (found.ours or not enter(found, new)):
        return new, "keep", (*ours, *key, *condition)
    return new, "seat", (ticket, since, *ours, *key, *condition)


def _left(
    key: tuple[str, int],
    found: CassandraRow,
    record: Doorman,
    seat: MutexRecord | None,
    now: int,
) -> Change:
    """With nothing of ours to be remembered."""
    if found == NOTHING:
        new = CassandraRow(_version())
        return new, "burn", (TOMBSTONE_SECONDS, new.version, *key)
    if seat is not None:  # a published program's: only ours goes
        ticket, since = columns_of(seat)
        nothing = (None, None, None)
        new = CassandraRow(ticket=ticket, since=since)
        return new, "keep", (*nothing, *key, *found.condition, *ANY)
    return gone(key, found.condition, burnt_until(record) - now)


def gone(key: tuple[str, int], condition: tuple[object, ...], burns: int) -> Change:
    """Leave nothing in its place; a burn, if it has to burn for that long."""
    if burns <= 0:
        return NOTHING, "vanish", (*key, *condition)
    new = CassandraRow(_version())
    burn = (math.ceil(burns / MICROS), new.version)
    return new, "scorch", (*burn, *key, *condition)


def _there(found: CassandraRow, new: CassandraRow) -> tuple[str | None, int | None]:
    """What ``record`` and ``frame`` must not be, for a swap from there.

    Whoever is let in builds on what this process remembers of the row. If another
    program has taken the record away since, nobody else would know of the grant
    (``test_a_record_that_was_taken_away``). A renewal writes the record anew.
    """
    return ANY if found.record is None or not enter(found, new) else (None, None)


def enter(found: CassandraRow, new: CassandraRow) -> bool:
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
    return stays and same and not enter(found, new)


def tickets_of(found: CassandraRow) -> Iterable[str]:
    """Who holds it."""
    return () if found.record is None else (g.ticket for g in found.record.grants)


def burnt_until(record: Doorman) -> int:
    """Until when the row must not be left empty, in its own time; 0: it may be."""
    until = dict(record.extra).get(BURNT)
    return until if isinstance(until, int) else 0


def _burning(found: CassandraRow, record: Doorman, now: int) -> Doorman:
    """A step over a burn goes on burning: its row is not left empty too soon.

    How long the burn would have lived nobody knows but who made it: the whole time.
    """
    burn = found.version is not None and found.record is None and found.ticket is None
    if not burn:
        return record
    extra = (*record.extra, (BURNT, now + micros(TOMBSTONE_SECONDS)))
    return replace(record, extra=extra)


def _version() -> UUID:
    return UUID(bytes=random_id(), version=4)
