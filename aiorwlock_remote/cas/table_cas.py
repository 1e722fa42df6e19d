"""``CasStore`` over the two published tables, whatever the database.

The row of ``mutex_locks`` is the mutex record; it exists as long as the lock is taken.
The row of ``doormans`` has the published columns, which people and other programs read,
and this library's record with its version. Times are passed as text in UTC, to the
microsecond: ``2026-11-21 19:05:00.000001``.

A ``StatementExecutor`` sends requests to the database and returns the answers. There
are two requests:

* ``swap``: compare the version and the mutex row, and check that the request is not
  late. If all agree, store the new values; else return what is stored. In one
  transaction, and at best in one round trip. If ``n_fence`` is given, a phase begins:
  the fence that is stored, and returned, is the greater of ``n_fence`` and the server's
  clock. If ``wait`` is given, the swap waits for a locked row for so many seconds. If
  ``crowded`` is, many swaps meet at the row: one that would wait for another may be
  refused as ``locked``.
* ``look``: return both rows as of one moment.

The server chooses the fence of a new phase, so that it is above all earlier fences,
also if the row was deleted or if a failover lost the last grant
(``tests/cas/test_failover.py``). A process must not choose the fence, because its
estimate of the server's time may be ahead of the server.

The stored text is the fence, a space, and the record as the process wrote it. The
reader replaces the record's ``last``, and the fence of its grants, by that fence. Each
permit of a semaphore has a fence of its own: those of the permits that a swap adds are
stored as 0, -1, …, relative to the fence that the server chooses
(``relative_fences``). A text without a fence has the older format, which counted the
fences of a row from ``created_at``.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from aiorwlock_remote._util.pending import Pending, map_pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.cas.arrivals import ArrivalNotices, is_new_entry_only
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.port import CasStore, StepTimes, StoredState, SwapReply
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.stepper import (
    CasStepper,
    CommandQueue,
    WakeClients,
    map_answers,
)
from aiorwlock_remote.core.admission import newly_pushed
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.commands import Answer, Command, Granted, Reply, Waiting
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant, seal, unseal
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import BackendError, BadRecord
from aiorwlock_remote.ports import Clock, Finding

COMPRESS_FROM_BYTES = 3_000
"""Records longer than this are compressed: 500 readers take 102 kB, or 28 kB."""
COMPRESSED_PREFIX = "z:"
FENCE_DIGITS = 19
VERSION_WITHOUT_RECORD_HINT = (
    "set its version to NULL as well, or delete its row of doormans"
)
BAD_ACQUIRED_AT_HINT = "correct or delete its row: acquired_at must be a time"
MAX_READERS_BYTES = 4_000
"""Bytes of the column ``active_readers``; readers that do not fit are left out."""

MAX_RECORD_BYTES = 32_767
"""Size limit of a stored record; a larger one is refused before it is sent."""
MAX_UNPACKED_BYTES = 1 << 25
"""Bytes of a record that is not compressed any more. What may be stored unpacks to
less, so a longer one is damage (tests/fuzz/test_damage.py)."""
MAX_RECORD_BYTES_TO_ENTER = MAX_RECORD_BYTES * 3 // 4
"""Size from which on a record gets no more holders or waiters.

The rest is for renewals: leases that end at different times compress less well.
"""
UNCONTENDED_AFTER = 8
"""So many swaps in a row by one process make a refusal of the next one unlikely."""
CROWD = 4
"""Entries of a queue from which on swaps do not wait for each other in the database."""
CLOCK_TOLERANCE = 1.0
"""Difference of two clocks, in seconds, from which on ``rwlock doctor`` reports it."""
Values = Mapping[str, object]
NO_RESOURCE_VALUES: Values = {
    "i_kind": "%",  # the encoding of names never yields this text
    "i_number": 0,
}
_EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_MICRO = timedelta(microseconds=1)


@value
class StoredRow:
    """Value object: a database's answer to a ``look`` or ``swap`` request.

    If the swap was carried out, only ``done``, ``now`` and ``fence`` are given; if it
    was refused because another transaction had locked the row, only ``locked``.
    """

    # The swap was carried out.
    done: bool
    # The server's clock, in microseconds.
    now: int
    # ``created_at``, version and text of the row in ``doormans``, if there is one.
    created: str | None = None
    version: str | None = None
    record: str | None = field(default=None, repr=False)
    # Ticket and ``acquired_at`` of the row in ``mutex_locks``, if there is one.
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    # The fence that the store chose in a swap that begins a phase.
    fence: int | None = None
    locked: bool = False


@value
class VersionMark:
    """Value object: the stored version and mutex row that the next swap must find."""

    version: str | None
    ticket: str | None = field(default=None, repr=False)
    since: str | None = None
    # The server's clock in the answer that brought it, in microseconds.
    now: int = field(default=0, compare=False)
    # How many swaps of this process in a row led to this version.
    calm: int = field(default=0, compare=False)


def state_of(found: StoredRow) -> StoredState:
    """Return the state in a database's answer, or raise ``BadRecord``."""
    seat, record = None, None
    if found.ticket is not None:
        try:
            since = _unix_seconds(found.since or "")  # None: infinity, or before Christ
        except BadRecord as exc:
            raise BadRecord(
                what="acquired_at of the row in mutex_locks is not a time of the years "
                "1 to 9999",
                hint=BAD_ACQUIRED_AT_HINT,
            ) from exc
        seat = MutexRecord(f"{found.ticket},{since}")
    # A row without a version was written by another program, by the published layout; a
    # version without a record is damage (tests/backends/postgresql/test_hostile.py).
    if found.record is None and found.version is not None:
        raise BadRecord(
            what="its row of doormans has a version but no record: was it edited by "
            "another program?",
            hint=VERSION_WITHOUT_RECORD_HINT,
        )
    if found.record is not None:
        record = load_record(found.record, found.created or "")
    mark = VersionMark(found.version, found.ticket, found.since, found.now)
    return StoredState(record, seat, mark, mark.now)


def pushed_state(found: StoredRow, grant: PushedGrant, ticket: str) -> StoredState:
    """Return the state that a swap stored when it pushed ``grant`` to this ticket.

    ``found.record`` is the sealed record, as the swap's ``p_record``.

    Raises:
        BadRecord: The record cannot be read, or was not sealed with this ticket.
    """
    text = unseal(found.record or "", ticket, found.version or "")
    if text is None:
        raise BadRecord(what="the record in a message is not sealed with our ticket")
    record = load_record(f"{grant.fence}{text}", "")
    if record.seat is None:
        raise BadRecord(what="the record in a message has no mutex record")
    seat = MutexRecord(record.seat)
    mark = VersionMark(found.version, *seat_columns(seat), found.now)
    return StoredState(record, seat, mark, mark.now)


def load_record(text: str, created: str) -> Doorman:
    """Parse the stored text of a doorman.

    ``created``: the row's column ``created_at``; texts of the older format count their
    fences from it.

    Raises:
        BadRecord: The text cannot be read.
    """
    fence, space, rest = text.partition(" ")
    if (
        space
        and fence.isdecimal()
        and len(fence) <= FENCE_DIGITS
        and int(fence) < 2**63
    ):
        return with_fence(loads(decompress(rest)), int(fence))
    record = loads(decompress(text))
    if not record.last:
        return record
    # The format before counted all fences of a row from the row's creation. The new
    # fences must be above them (test_failover.py: test_a_row_of_the_version_before).
    base = micros_of(created)
    endings = tuple(replace(e, fence=e.fence + base) for e in record.endings)
    return with_fence(replace(record, endings=endings), record.last + base)


def with_fence(record: Doorman, fence: int) -> Doorman:
    """Return the record with ``fence`` as the fence of the current phase's grants.

    The ``endings`` (notes why grants ended early) keep the fences of earlier phases, as
    do a semaphore's permits, but for relative ones.
    """
    permits = record.has_permits
    if fence == record.last and not permits:
        return record
    grants = tuple(
        grant
        if permits and grant.fence > 0
        # Relative, or the phase's.
        else replace(grant, fence=fence + (grant.fence if permits else 0))
        for grant in record.grants
    )
    return replace(record, last=fence, grants=grants)


def relative_fences(record: Doorman, before: int) -> Doorman:
    """Return the record with each new permit's fence as the distance from the last.

    ``before``: the last fence of the record that is replaced. The server chooses the
    last fence only when it stores the record: ``record.last`` or a higher one, so that
    each of several new permits has a fence above ``before``.
    """
    if not record.has_permits:
        return record
    grants = tuple(
        replace(grant, fence=grant.fence - record.last)
        if grant.fence > before
        else grant
        for grant in record.grants
    )
    return replace(record, grants=grants)


def dump_record(record: Doorman, *, begins: bool) -> str:
    """Return the doorman as text to store in the table, preceded by its last fence.

    ``begins``: a phase begins, so that the server writes the fence.
    """
    text = dumps(record)
    if len(text) > COMPRESS_FROM_BYTES:
        compressed = zlib.compress(text.encode(), 3)
        text = COMPRESSED_PREFIX + base64.b64encode(compressed).decode()
    return f" {text}" if begins else f"{record.last} {text}"


def decompress(text: str) -> str:
    """Return a stored record's JSON text, or raise ``BadRecord`` if it is damaged."""
    if not text.startswith(COMPRESSED_PREFIX):
        return text
    packed = text.removeprefix(COMPRESSED_PREFIX)
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(packed), MAX_UNPACKED_BYTES)
        if not unpacker.eof:
            raise BadRecord(what="the stored record is cut off, or too long")
        return data.decode()
    except (binascii.Error, zlib.error, ValueError) as exc:
        raise BadRecord(what="the stored record cannot be decompressed") from exc


def seat_columns(seat: MutexRecord | None) -> tuple[str | None, str | None]:
    """Return the columns ``ticket`` and ``acquired_at``; both None if ``seat`` is."""
    if seat is None:
        return None, None
    seconds, _, rest = seat.value.rpartition(",")[2].partition(".")
    return seat.ticket, time_text(int(seconds) * MICROS + int(rest or 0))


def doorman_columns(record: Doorman) -> tuple[str, str | None]:
    """Return the columns ``active_readers`` and ``pending_writer`` of a doorman."""
    grants, writer = record.grants, None
    for entry in record.queue:
        if entry.mode is Mode.WRITE:
            writer = f"{entry.client_id},{entry.since // MICROS}"
            break
    # Readers are alone among themselves.
    reads = bool(grants) and grants[0].mode is Mode.READ
    return "{" + ",".join(_reader_entries(record) if reads else ()) + "}", writer


def _reader_entries(record: Doorman) -> Iterator[str]:
    left = MAX_READERS_BYTES - len("{}")
    for grant in record.grants:
        if grant.mode is Mode.READ:
            entry = f"{json.dumps(grant.ticket)}:{grant.since // MICROS}"
            left -= len(entry) + 1
            if left < 0:
                return
            yield entry


def micros_of(text: str) -> int:
    """Parse a UTC time to microseconds since 1970; ``BadRecord`` if it is none."""
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MICRO
    except (ValueError, TypeError) as exc:  # TypeError: it has a time zone
        raise BadRecord(what=f"{text!r} is not a time") from exc


def time_text(micros: int) -> str:
    """Format microseconds since 1970 as UTC, like ``2026-11-21 19:05:00.000001``."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(" ", "microseconds")


def _unix_seconds(since: str) -> str:
    # This library writes whole seconds; other programs may write fractions.
    whole, rest = divmod(micros_of(since), MICROS)
    return f"{whole}.{rest:06}" if rest else str(whole)


class StatementExecutor(Protocol):
    """Port: sends a swap or a read to the database, as one request each."""

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """Send the request ``name`` (``swap`` or ``look``) with its parameters by name.

        The reply arrives in the caller's thread. If the caller is cancelled, the
        request is still carried out. If the reply fails with a ``BackendError`` without
        ``nothing_done``, the request may have been carried out.
        """


def may_skip_fsync(
    before: Doorman | None, after: Doorman, *, stays: bool, leaves: bool
) -> bool:
    """Return True if a server crash may undo the step without harm.

    ``before`` and ``after``: the doorman before and after the step. ``stays``: the step
    does not change the mutex record; ``leaves``: the step removes the mutex record.
    """
    # Such a commit need not wait for the disk, which it reaches before any later commit
    # does. No holder, and no next fence, may depend on it (test_durability.py).
    if before is None:
        return False
    if leaves:
        expiries = [grant.expires for grant in before.grants]
        return bool(expiries) and None not in expiries
    if after.pushed and after.last != before.last:
        # If a crash undoes it, the grant before is held again until its lease ends, and
        # by then the client has stopped to believe in the pushed one, whose
        # confirmation finds nothing.
        ends = [grant.expires for grant in (*before.grants, *after.grants)]
        *earlier, last = [0 if end is None else end for end in ends]
        return bool(earlier) and min(earlier) >= last
    return stays and after.grants == before.grants and after.last == before.last


class TableCas(CasStore):
    """``CasStore`` over the published tables, used in one event loop or thread."""

    def __init__(
        self,
        executor: StatementExecutor,
        clock: Clock,
        time: ServerTime,
        arrivals: ArrivalNotices | None = None,
    ) -> None:
        """Create the store; no request is sent.

        Args:
            executor: Sends the requests to the database.
            clock: The local clock.
            time: Bounds of the server's clock, shared by the whole process.
            arrivals: Set if the executor can send notifications, else None. Swaps then
                have more parameters: ``wakes`` (ids of clients that may claim),
                ``secret`` (the record has tickets of waiting clients), ``ear`` (id of
                the client to notify of a new queue entry), ``lazily`` (a server crash
                may undo the swap) and ``calm`` (a refusal is unlikely). If the client
                in ``wakes`` is pushed a grant, also ``p_since`` and ``p_expires`` (of
                that grant, in microseconds) and ``p_record`` (the sealed record).
        """
        # Seconds for which a swap waits for a row that another transaction has locked
        # (``wait``). 0: it does not wait; None: as long as a request may take.
        self.patience: float | None = None
        super().__init__(clock)
        self._arrivals = arrivals
        self._executor = executor
        self._time = time

    def guess(self) -> StoredState:
        return StoredState(None, None, VersionMark(None))

    def times(self, state: StoredState) -> StepTimes:
        del state  # and the floor is 0: the server chooses the fences
        at = round(self.local_clock.now() * MICROS)
        bounds = self._time.bounds(at)
        least: int = bounds.least
        return StepTimes(least, 0, least, at, bounds.slack)

    def load(self, resource: Resource) -> Pending[StoredState]:
        kind, number = resource.row
        sent = self.clock()
        asked = self._executor.ask("look", {"i_kind": kind, "i_number": number})
        return map_pending(asked, lambda found: self._seen(found, sent))

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[SwapReply]:
        kind, number = resource.row
        mark: VersionMark = state.mark
        sent, version = times.sent, random_id().hex()
        ticket, since = seat_columns(seat)
        arrivals = self._arrivals
        stays = (ticket, since) == (mark.ticket, mark.since)
        if arrivals is not None and not stays:
            to = wakes[0] if record.pushed and wakes else None
            record = arrivals.turned(record, to)
        # A new phase gets its fence from the server's clock, which no process may guess
        # (test_failover.py: test_a_lost_grant).
        last = state.record.last if state.record is not None else 0
        begins = record.last > last
        if begins:
            record = relative_fences(record, last)
        text = dump_record(record, begins=begins)
        size = len(text) + FENCE_DIGITS * begins
        if size > MAX_RECORD_BYTES_TO_ENTER and (
            size > MAX_RECORD_BYTES or _has_more_members(state.record, record)
        ):
            return _record_too_long(record, resource)
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
        elif len(record.queue) >= CROWD:
            values["crowded"] = True
        if arrivals is not None:
            number = 0 if state.record is None else state.record.number
            came = record.number != number and is_new_entry_only(state.record, record)
            values["wakes"] = wakes
            # A notification must not have the record if there are tickets in it.
            queue = record.queue
            values["secret"] = bool(queue) and any(entry.ticket for entry in queue)
            pushed = newly_pushed(record, wakes) if wakes else None
            if pushed is not None:
                values["p_since"], values["p_expires"] = pushed.since, pushed.expires
                values["p_record"] = seal(text, pushed.ticket, version)
            values["ear"] = arrivals.behind(record) if came else None
            values["lazily"] = may_skip_fsync(
                state.record, record, stays=stays, leaves=not stays and ticket is None
            )
            values["calm"] = mark.calm >= UNCONTENDED_AFTER

        def swapped(found: StoredRow) -> SwapReply:
            if found.locked:
                return False, None
            if not found.done:
                return False, self._seen(found, sent)
            now = self._update_time(found, sent)
            new = VersionMark(version, ticket, since, now, mark.calm + 1)
            fence = record.last if found.fence is None else found.fence
            stored = with_fence(record, fence) if begins else record
            return True, StoredState(stored, seat, new, now)

        return map_pending(self._executor.ask("swap", values), swapped)

    def _seen(self, found: StoredRow, sent: int) -> StoredState:
        self._update_time(found, sent)
        return state_of(found)

    def _update_time(self, found: StoredRow, sent: int) -> int:
        at = round(self.local_clock.now() * MICROS)
        self._time.update(found.now, at, at - sent)
        return found.now


class TableStepper(CasStepper):
    """``CasStepper`` over the published tables, with pauses after repeated refusals."""

    def __init__(self, cas: CasStore, wakes: WakeClients, later: Later) -> None:
        super().__init__(cas, wakes, CasBackoff(cas.load, later))

    def _adjust(self, command: Command, reply: Reply, queue: CommandQueue) -> Reply:
        del command
        assert queue.seen is not None, "a table's swap tells what is stored"
        # Read after the command was sent; the transition's ``now`` may be behind it by
        # the slack, and is no bound for who hears of a pushed grant
        # (test_pushed_windows.py:
        # test_a_message_is_not_believed_beside_the_next_holder).
        clock: int = queue.seen.mark.now

        def timed(answer: Answer) -> Answer:
            if isinstance(answer, Waiting):
                return replace(answer, now=max(clock, answer.now))
            if not isinstance(answer, Granted):
                return answer
            latest = max(clock, answer.now)
            # For a fresh grant the caller counts from when it sent its request.
            fresh = {grant.since for grant in answer.grants} <= {answer.now}
            now = answer.now if fresh else latest
            return replace(answer, now=now, latest=latest)

        return timed(reply) if isinstance(reply, Granted) else map_answers(reply, timed)


def _record_too_long(record: Doorman, resource: Resource) -> Pending[SwapReply]:
    failed: Pending[SwapReply] = Pending()
    failed.set_exception(
        BackendError(
            what=f"{resource.label}: {len(record.grants)} holders and "
            f"{len(record.queue)} waiting processes are more than a record can hold",
            hint="let many tasks share one reader, or spread the readers over several "
            "names",
            nothing_done=True,
        )
    )
    return failed


def _has_more_members(before: Doorman | None, after: Doorman) -> bool:
    members = 0 if before is None else len(before.grants) + len(before.queue)
    return len(after.grants) + len(after.queue) > members


async def read_server_time(executor: StatementExecutor, clock: Clock) -> ServerTime:
    """Ask the server for its time; return bounds of its clock, to be updated."""
    found = await executor.ask("look", NO_RESOURCE_VALUES)
    return ServerTime(found.now, micros(clock.now()))


async def clock_finding(executor: StatementExecutor, clock: Clock) -> Finding:
    """Return how far the server's clock is ahead of ours, for ``rwlock doctor``."""
    found = await executor.ask("look", NO_RESOURCE_VALUES)
    ahead = found.now / MICROS - clock.wall()
    return Finding(
        "clock",
        f"{ahead:+.1f} s from ours",
        "leases are counted by the server's, in UTC; a cluster's must agree",
        "good" if abs(ahead) < CLOCK_TOLERANCE else "note",
    )
