"""What time it is at a database with our tables: by a look at no resource.

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
from aiorwlock_remote.cas.arrivals import ArrivalNotices, is_new_entry_only
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.durability import may_skip_fsync
from aiorwlock_remote.cas.port import StepTimes, StoredState
from aiorwlock_remote.cas.replies import each_grant
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.stepper import CasStepper, CommandQueue, Wakes
from aiorwlock_remote.cas.table_rows import (
    FENCE,
    StoredRow,
    VersionMark,
    fenced,
    micros_of,
    published,
    seat_columns,
    state_of,
    text_at,
    text_of,
)
from aiorwlock_remote.core.commands import Command, Granted, Reply
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.lease import MICROS, micros
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import Clock, Finding

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
        text = text_of(record, begins=begins)
        size = len(text) + FENCE * begins
        if size > MAX_RECORD_BYTES_TO_ENTER and (
            size > MAX_RECORD_BYTES or _grows(state.record, record)
        ):
            return _failed(_too_long(record, resource))
        readers, writer = published(record)
        values: dict[str, object] = {
            "i_kind": kind,
            "i_number": number,
            "i_latest": text_at(times.now + times.slack),
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
            stored = record if found.fence is None else fenced(record, found.fence)
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

    def __init__(self, cas: TableCas, wakes: Wakes, later: Later) -> None:
        """``later(seconds, function)``: called then, in this thread."""
        super().__init__(cas, wakes, CasBackoff(cas.load, later), _dated)


def newer(one: StoredState | None, other: StoredState | None) -> StoredState | None:
    """Which of two states of one resource was told later, by the server's clock."""
    if one is None or other is None:
        return one or other
    return one if one.mark.now > other.mark.now else other


def _dated(_: Command, reply: Reply, line: CommandQueue) -> Reply:
    """A grant that was there before is as old as the server's clock says."""
    now = 0 if line.seen is None else line.seen.mark.now

    def dated(granted: Granted) -> Granted:
        for grant in granted.grants:
            if grant.since != granted.now:
                return replace(granted, now=max(now, granted.now))
        return granted

    return each_grant(reply, dated)


def _failed(error: BackendError) -> Pending[tuple[bool, StoredState | None]]:
    pending: Pending[tuple[bool, StoredState | None]] = Pending()
    pending.set_exception(error)
    return pending


def _grows(before: Doorman | None, after: Doorman) -> bool:
    return _members(after) > (0 if before is None else _members(before))


def _members(record: Doorman) -> int:
    return len(record.grants) + len(record.queue)


def _too_long(record: Doorman, resource: Resource) -> BackendError:
    return BackendError(
        what=f"{resource.label}: {len(record.grants)} holders and "
        f"{len(record.queue)} waiting processes are more than a record can hold",
        hint="one reader for many tasks, or the readers on several names",
        nothing_done=True,
    )


FAR_OFF = 1.0
"""Seconds by which clocks may differ before it is worth a word."""
NO_RESOURCE: Values = {
    "i_kind": "%",
    "i_number": 0,
}  # no name of a resource is encoded like that


async def read_server_time(desk: StatementExecutor, clock: Clock) -> ServerTime:
    """By the server's clock.

    Raises:
        BackendError: as ``desk`` says.
    """
    found = await desk.ask("look", NO_RESOURCE)
    return ServerTime(micros_of(found.now), micros(clock.now()))


async def clock_finding(desk: StatementExecutor, clock: Clock) -> Finding:
    """How far off ours is.

    Raises:
        BackendError: as ``desk`` says.
    """
    found = await desk.ask("look", NO_RESOURCE)
    ahead = micros_of(found.now) / MICROS - clock.wall()
    return Finding(
        "clock",
        f"{ahead:+.1f} s from ours",
        "leases are counted by the server's, in UTC; a cluster's must agree",
        "good" if abs(ahead) < FAR_OFF else "note",
    )
