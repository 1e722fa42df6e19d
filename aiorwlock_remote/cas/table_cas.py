"""Who holds a resource is told that somebody queued up behind it.

A new place is a new version: a holder that knows only its own would be refused when it
leaves, and ask again while somebody waits for that. So a process that can be told
leaves its gate in the record (``ear``, a field of ours beside the core's) as it enters,
and whoever takes a place behind it tells it. It is a hint, as all messages are.

What a crash of the server may take back, so that its commit need not be waited for.

Nothing on which anybody's being in depends, or the fence that comes next. A commit that
is not waited for is on the disk before any later one.

What time it is at a database with our tables: by a look at no resource.

The two published tables as a store that compares and sets, whatever the database.

A *desk* carries requests to it and brings answers back. There are two requests:

* ``swap``: compare the version and the seat, and that it is not too late; if so put
  there what is given; else tell what stands there. In one transaction, and at best one
  round trip. If ``n_fence`` is given, a phase begins: the fence that is stored, and
  told, is the greater of that and the server's clock (``rows``).
* ``look``: tell what stands there, of one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiorwlock_remote._util.pending import Pending, map_pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.port import StepTimes, StoredState
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.stepper import (
    CasStepper,
    CommandQueue,
    WakeClients,
    map_granted,
)
from aiorwlock_remote.cas.table_rows import (
    FENCE_DIGITS,
    StoredRow,
    VersionMark,
    doorman_columns,
    dump_record,
    micros_of,
    seat_columns,
    state_of,
    time_text,
    with_fence,
)
from aiorwlock_remote.core.commands import Command, Granted, Reply
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import Clock, Finding

NOTIFIED_CLIENT_FIELD = "ear"
MAX_CLIENT_ID_LENGTH = 32
"""Characters of a gate; anything else in its place is nobody."""


class ArrivalNotices:
    """Of one process. ``hears``: whether it can be told; from any thread."""

    def __init__(self, gate: str) -> None:
        """It cannot yet."""
        self.hears: bool = False
        self._gate = gate

    def turned(self, record: Doorman) -> Doorman:
        """The record as the seat changes hands: with our ear, or with nobody's."""
        ours = (
            ((NOTIFIED_CLIENT_FIELD, self._gate),)
            if self.hears and record.grants
            else ()
        )
        if not ours and not record.extra:
            return record
        others = tuple(
            entry for entry in record.extra if entry[0] != NOTIFIED_CLIENT_FIELD
        )
        return replace(record, extra=others + ours)

    def behind(self, record: Doorman) -> str | None:
        """Who is to be told of a new place, if it is not ourselves."""
        ear = dict(record.extra).get(NOTIFIED_CLIENT_FIELD)
        if not isinstance(ear, str) or not ear.isalnum() or not ear.isascii():
            return None
        return ear if ear != self._gate and len(ear) <= MAX_CLIENT_ID_LENGTH else None


def is_new_entry_only(before: Doorman | None, after: Doorman) -> bool:
    """Whether all that changed is that somebody waits for those who are in."""
    if before is None or after.number == before.number:
        return False
    return bool(after.grants) and after.grants == before.grants


def may_skip_fsync(
    before: Doorman | None, after: Doorman, *, stays: bool, leaves: bool
) -> bool:
    """Whether a crash may undo this step, in which the seat stays or is left."""
    if leaves:
        return all_grants_expire(before)
    return stays and only_queue_changed(before, after)


def all_grants_expire(record: Doorman | None) -> bool:
    """Whether all that is held would end by itself, if that it ended were undone."""
    if record is None or not record.grants:
        return False
    return all(grant.expires is not None for grant in record.grants)


def only_queue_changed(before: Doorman | None, after: Doorman) -> bool:
    """Whether all that changed is who waits: whoever loses its place asks again."""
    if before is None:
        return False
    return after.grants == before.grants and after.last == before.last


MAX_RECORD_BYTES = 32_767
"""Bytes of a stored record that a request can carry."""
MAX_RECORD_BYTES_TO_ENTER = MAX_RECORD_BYTES * 3 // 4
"""No more enter. The rest is for renewals: with ends that differ it packs less well."""

UNCONTENDED_AFTER = 8
"""Swaps of ours in a row after which nobody is expected to come between."""

Values = Mapping[str, object]


class StatementExecutor(Protocol):
    """Carries requests to the database; answers come in the loop's own thread."""

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """One request, ``swap`` or ``look``, beyond any caller's cancellation.

        Fails with ``BackendError``, which without ``nothing_done`` leaves it open
        whether it was carried out.
        """


class TableCas:
    """``CasStore`` over a desk. Belongs to one loop or thread."""

    def __init__(
        self,
        desk: StatementExecutor,
        clock: Clock,
        time: ServerTime,
        ears: ArrivalNotices | None = None,
    ) -> None:
        """``time``: of the whole process.

        ``ears``: of a desk that tells the gates that have something to claim
        (``wakes``), and a holder of who queued up behind it (``ear``). It is also told
        whether a crash may undo it (``lazily``), and whether a refusal would be a
        surprise (``calm``).

        ``patience``: seconds for which a swap waits for a row that somebody else has
        locked (``wait``); 0: it does not; None: as long as a request may take.
        """
        self.patience: float | None = None
        self._ears = ears
        self._desk = desk
        self._clock = clock
        self._time = time

    def guess(self) -> StoredState:
        """Nothing."""
        return StoredState(None, None, VersionMark(None))

    def clock(self) -> int:
        """The boot clock."""
        return micros(self._clock.now())

    def times(self, state: StoredState) -> StepTimes:
        """The least the server's clock can be; fences count by one, see ``rows``."""
        del state
        at = self.clock()
        bounds = self._time.bounds(at)
        least: int = bounds.least
        return StepTimes(least, 0, least, at, bounds.slack)

    def load(self, resource: Resource) -> Pending[StoredState]:
        """By one plain read of both tables."""
        kind, number = resource.row
        sent = self.clock()
        asked = self._desk.ask("look", {"i_kind": kind, "i_number": number})
        return map_pending(asked, lambda found: self._seen(found, sent))

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[tuple[bool, StoredState | None]]:
        """By one request, which the server refuses if it comes too late."""
        kind, number = resource.row
        mark: VersionMark = state.mark
        sent, version = times.sent, random_id().hex()
        ticket, since = seat_columns(seat)
        ears = self._ears
        stays = (ticket, since) == (mark.ticket, mark.since)
        if ears is not None and not stays:
            record = ears.turned(record)
        begins = record.last > (state.record.last if state.record is not None else 0)
        text = dump_record(record, begins=begins)
        size = len(text) + FENCE_DIGITS * begins
        if size > MAX_RECORD_BYTES_TO_ENTER and (
            size > MAX_RECORD_BYTES or _has_more_members(state.record, record)
        ):
            return _failed_swap(_record_too_long(record, resource))
        readers, writer = doorman_columns(record)
        values: dict[str, object] = {
            "i_kind": kind,
            "i_number": number,
            "i_latest": time_text(times.now + times.slack),
            "i_version": mark.version,
            "i_ticket": mark.ticket,
            "i_since": mark.since,
            "t_ticket": ticket,
            "t_since": since,
            "n_version": version,
            "n_fence": record.last if begins else None,
            "n_record": text,
            "n_readers": readers,
            "n_waits": int(writer is not None),
            "n_writer": writer,
        }
        if self.patience is not None:
            values["wait"] = self.patience
        if ears is not None:
            came = is_new_entry_only(state.record, record)
            values["wakes"] = wakes
            values["ear"] = ears.behind(record) if came else None
            values["lazily"] = may_skip_fsync(
                state.record, record, stays=stays, leaves=not stays and ticket is None
            )
            values["calm"] = mark.calm >= UNCONTENDED_AFTER

        def swapped(found: StoredRow) -> tuple[bool, StoredState | None]:
            if not found.done:
                return False, self._seen(found, sent)
            now = self._told(found, sent)
            new = VersionMark(version, ticket, since, now, mark.calm + 1)
            stored = record if found.fence is None else with_fence(record, found.fence)
            return True, StoredState(stored, seat, new)

        return map_pending(self._desk.ask("swap", values), swapped)

    def _seen(self, found: StoredRow, sent: int) -> StoredState:
        self._told(found, sent)
        return state_of(found)

    def _told(self, found: StoredRow, sent: int) -> int:
        now, at = micros_of(found.now), self.clock()
        self._time.told(now, at, at - sent)
        return now


class TableStepper(CasStepper):
    """``Store.step`` on the tables: one swap, or a few where others come between."""

    def __init__(self, cas: TableCas, wakes: WakeClients, later: Later) -> None:
        """``later(seconds, function)``: called then, in this thread."""
        super().__init__(cas, wakes, CasBackoff(cas.load, later), _with_server_time)


def newer_state(
    one: StoredState | None, other: StoredState | None
) -> StoredState | None:
    """Which of two states of one resource was told later, by the server's clock."""
    if one is None or other is None:
        return one or other
    return one if one.mark.now > other.mark.now else other


def _with_server_time(_: Command, reply: Reply, line: CommandQueue) -> Reply:
    """A grant that was there before is as old as the server's clock says."""
    now = 0 if line.seen is None else line.seen.mark.now

    def dated(granted: Granted) -> Granted:
        for grant in granted.grants:
            if grant.since != granted.now:
                return replace(granted, now=max(now, granted.now))
        return granted

    return map_granted(reply, dated)


def _failed_swap(error: BackendError) -> Pending[tuple[bool, StoredState | None]]:
    pending: Pending[tuple[bool, StoredState | None]] = Pending()
    pending.set_exception(error)
    return pending


def _has_more_members(before: Doorman | None, after: Doorman) -> bool:
    return _member_count(after) > (0 if before is None else _member_count(before))


def _member_count(record: Doorman) -> int:
    return len(record.grants) + len(record.queue)


def _record_too_long(record: Doorman, resource: Resource) -> BackendError:
    return BackendError(
        what=f"{resource.label}: {len(record.grants)} holders and "
        f"{len(record.queue)} waiting processes are more than a record can hold",
        hint="one reader for many tasks, or the readers on several names",
        nothing_done=True,
    )


CLOCK_TOLERANCE = 1.0
"""Seconds by which clocks may differ before it is worth a word."""
NO_RESOURCE_VALUES: Values = {
    "i_kind": "%",
    "i_number": 0,
}  # no name of a resource is encoded like that


async def read_server_time(desk: StatementExecutor, clock: Clock) -> ServerTime:
    """By the server's clock.

    Raises:
        BackendError: as ``desk`` says.
    """
    found = await desk.ask("look", NO_RESOURCE_VALUES)
    return ServerTime(micros_of(found.now), micros(clock.now()))


async def clock_finding(desk: StatementExecutor, clock: Clock) -> Finding:
    """How far off ours is.

    Raises:
        BackendError: as ``desk`` says.
    """
    found = await desk.ask("look", NO_RESOURCE_VALUES)
    ahead = micros_of(found.now) / MICROS - clock.wall()
    return Finding(
        "clock",
        f"{ahead:+.1f} s from ours",
        "leases are counted by the server's, in UTC; a cluster's must agree",
        "good" if abs(ahead) < CLOCK_TOLERANCE else "note",
    )
