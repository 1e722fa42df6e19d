"""``LockInfo``: who holds a resource, since when, and who waits, as users see it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord, QueueEntry
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import READERS, Mode, ModeName, holder_of
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.transition import peek
from aiorwlock_remote.ports import ForeignHolder, Snapshot

_SECONDS = re.compile(r"[0-9]{1,11}(\.[0-9]{1,6})?")
"""Seconds since 1970 in a record of another program, with a date's digits at most."""

_LAST = 250_000_000_000 * MICROS
"""The last time that is shown as a date, in the year 9892; microseconds."""

NO_RESOURCE = Resource("", "")


@dataclass(frozen=True, slots=True)
class Holder:
    """Value object: one grant of a resource.

    Attributes:
        holder: the public name of the ticket (12 hex digits of its SHA-256).
        fence: the fencing number; None if ``foreign``.
        age: seconds since the grant.
        expires_in: seconds until the lease ends; None: the grant never expires;
            negative: it ran out, and no task has requested the resource after that.
        foreign: the holder is a program that uses the published mutex record without
            this library.
    """

    holder: str
    mode: ModeName
    fence: int | None
    since: datetime
    age: float
    expires_in: float | None
    host: str = ""
    pid: int = 0
    task: str = ""
    reason: str = ""
    foreign: bool = False
    seat: str | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        kind = "foreign" if self.foreign else self.mode
        return f"<Holder {self.holder} {kind} fence={self.fence} {self.age:.1f}s>"


@dataclass(frozen=True, slots=True)
class Queued:
    """Value object: a process that waits for a resource in one mode.

    ``waiting`` is the number of its tasks, ``age`` how many seconds it has waited.
    """

    mode: ModeName
    waiting: int
    age: float
    host: str = ""
    pid: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Value object: a resource as it stood when the store was asked.

    The fields are named as in the published lock record; where that has secret tickets,
    they have public holder names.

    Attributes:
        resource_id: a text, also if the id is a number: 42 and "42" name one lock.
        fence: the last fencing number handed out.
        clock_set_back: seconds by which the store's clock was set back after the last
            change of the resource, else 0.0. Leases end later by that time.
        limit: of a semaphore: how many permits there are, the least limit of those that
            hold and wait; None for a lock, and if no task holds or waits.
        semaphore: whether this is a semaphore, and not a lock of the same name.
    """

    resource_type: str
    resource_id: str
    holders: tuple[Holder, ...]
    queue: tuple[Queued, ...]
    fence: int
    active_readers: dict[str, datetime]
    has_pending_writer: bool
    pending_writer: tuple[str, datetime] | None
    updated_at: datetime | None
    created_at: datetime | None
    target: Resource = field(default=NO_RESOURCE, repr=False)
    clock_set_back: float = 0.0
    limit: int | None = None
    semaphore: bool = False

    @property
    def locked(self) -> bool:
        """Whether the resource is held, by a grant that has not run out."""
        return self.permits_held > 0

    @property
    def permits_held(self) -> int:
        """How many holders have a grant that has not run out."""
        left = [holder.expires_in for holder in self.holders]
        return sum(seconds is None or seconds > 0 for seconds in left)

    def stale(self, older_than: float = 0.0) -> LockInfo | None:
        """Return a copy with only the holders that look abandoned; None if none does.

        A holder looks abandoned if its grant is at least ``older_than`` seconds old,
        and never expires, or ran out and no task has requested the resource after that.
        This includes holders that use the published mutex record without this library.
        After the store's clock was set back, every holder looks abandoned.
        """
        left = tuple(
            holder
            for holder in self.holders
            if self.clock_set_back
            or (
                holder.age >= older_than
                and (holder.expires_in is None or holder.expires_in <= 0)
            )
        )
        return replace(self, holders=left) if left else None


def left_behind(seen: LockInfo) -> list[Holder]:
    """Return the holders that look abandoned and block others; a lease that ran out
    blocks none.
    """
    stale = seen.stale()
    holders = () if stale is None else stale.holders
    return [one for one in holders if one.expires_in is None or one.expires_in > 0]


def lock_info(snapshot: Snapshot) -> LockInfo:
    """Convert a snapshot of a resource, as read from the store, to a ``LockInfo``."""
    record = snapshot.record
    live, foreign = peek(
        *(record, snapshot.seat, snapshot.now),
        semaphore=snapshot.resource.is_semaphore,
    )
    holders = [_holder(grant, snapshot) for grant in _shown(record, live)]
    if foreign is not None:
        holders = [_foreign(foreign, snapshot)]
    holders += [_guest(guest, snapshot) for guest in snapshot.guests]
    writers = [place for place in live.queue if place.mode is Mode.WRITE]
    first = writers[0] if writers else None
    resource_type, resource_id = snapshot.resource.shown
    return LockInfo(
        resource_type=resource_type,
        resource_id=resource_id,
        holders=tuple(holders),
        queue=tuple(_queued(place, snapshot) for place in live.queue),
        fence=record.last,
        active_readers={h.holder: h.since for h in holders if h.mode == "read"},
        has_pending_writer=first is not None,
        pending_writer=None
        if first is None
        else (holder_of(first.client_id), _when(first.since, snapshot)),
        updated_at=_date(record.updated),
        created_at=_date(record.created),
        target=snapshot.resource,
        clock_set_back=snapshot.set_back / MICROS,
        limit=_limit(live),
        semaphore=snapshot.resource.is_semaphore,
    )


def _limit(live: Doorman) -> int | None:
    if not live.has_permits:
        return None
    limits = [grant.limit for grant in live.grants]
    return min(limits + [entry.limit for entry in live.queue])


def _shown(record: Doorman, live: Doorman) -> tuple[Grant, ...]:
    # Grants that ran out stay visible until the next request removes them.
    return live.grants or record.grants


def _holder(grant: Grant, at: Snapshot) -> Holder:
    left = None if grant.expires is None else (grant.expires - at.now) / MICROS
    return Holder(
        holder=grant.holder,
        mode=grant.mode.shown,
        fence=grant.fence,
        since=_when(grant.since, at),
        age=(at.now - grant.since) / MICROS,
        expires_in=left,
        host=grant.who.host,
        pid=grant.who.pid,
        task=grant.who.task,
        reason=grant.who.reason,
    )


def _foreign(seat: MutexRecord, at: Snapshot) -> Holder:
    # The published record has the time of its writer's clock; the store's wall clock is
    # the nearest thing to compare it with.
    since = _record_time(seat, at.wall)
    left = None if seat.expires is None else (seat.expires - at.now) / MICROS
    return Holder(
        holder=holder_of(seat.ticket),
        mode=_foreign_mode(seat, at.resource),
        fence=None,
        since=datetime.fromtimestamp(since / MICROS, UTC),
        age=max(0.0, (at.wall - since) / MICROS),
        expires_in=left,
        foreign=True,
        seat=seat.value,
    )


def _foreign_mode(seat: MutexRecord, resource: Resource) -> ModeName:
    if resource.is_semaphore:
        return "write"  # a ticket: the word of our own is never foreign
    return "read" if seat.ticket == READERS else "write"


def _record_time(seat: MutexRecord, wall: int) -> int:
    found = _SECONDS.fullmatch(seat.value.rpartition(",")[2])
    return wall if found is None else round(float(found[0]) * MICROS)


def _guest(guest: ForeignHolder, at: Snapshot) -> Holder:
    left = None if guest.expires is None else (guest.expires - at.now) / MICROS
    return Holder(
        holder=holder_of(guest.value),
        mode=guest.mode.shown,
        fence=None,
        since=datetime.fromtimestamp(at.wall / MICROS, UTC),
        age=0.0,
        expires_in=left,
        foreign=True,
        seat=guest.value,
    )


def _queued(place: QueueEntry, at: Snapshot) -> Queued:
    return Queued(
        mode=place.mode.shown,
        waiting=place.waiting,
        age=(at.now - place.since) / MICROS,
        host=place.who.host,
        pid=place.who.pid,
        reason=place.who.reason,
    )


def _when(store_time: int, at: Snapshot) -> datetime:
    return _moment(at.wall - (at.now - store_time))


def _date(wall: int) -> datetime | None:
    return _moment(wall) if wall else None


def _moment(wall: int) -> datetime:
    return datetime.fromtimestamp(min(max(0, wall), _LAST) / MICROS, UTC)
