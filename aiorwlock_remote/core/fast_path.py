"""Results of ``transition`` for the commonest steps, in a fraction of its time.

* A writer without rivals acquires or releases.
* A writer leaves to the oldest waiting writer, which is pushed its claim.
* A writer confirms its pushed grant.

For all else the result is None, and the full transition has to run.
``tests/core/test_fast_path.py`` compares every field of every result.
"""

from __future__ import annotations

from aiorwlock_remote.core.commands import (
    Acquire,
    Command,
    Granted,
    Release,
    Released,
)
from aiorwlock_remote.core.doorman import (
    MAX_LOCAL_TURNS,
    Doorman,
    Grant,
    MutexRecord,
    QueueEntry,
    mutex_record_value,
    new_fence,
)
from aiorwlock_remote.core.mutex_record import longer
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace

FastStep = tuple[
    Doorman, MutexRecord | None, Granted | Released, tuple[str, ...], Grant | None
]
"""The arguments of a ``transition.Step``."""


def fast_path(
    before: Doorman,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int,
) -> FastStep | None:
    """Return the arguments of the ``Step`` that ``transition`` returns, or None."""
    if before.upgrader is not None or before.barred_until:
        return None
    if before.queue:
        if seat is None or seat.value != before.seat:
            return None
        if isinstance(command, Release):
            return _hand_over(before, command, now, floor, wall)
        if isinstance(command, Acquire) and before.pushed:
            return _confirm(before, command, now, wall)
        return None
    if seat is None:
        if isinstance(command, Acquire) and not before.grants:
            return _fast_acquire(before, command, now, floor, wall)
    elif isinstance(command, Release) and seat.value == before.seat:
        return _fast_release(before, command, now, wall)
    return None


def _fast_acquire(
    before: Doorman, cmd: Acquire, now: int, floor: int, wall: int
) -> FastStep | None:
    if cmd.mode is not Mode.WRITE or cmd.more or before.seat is not None:
        return None
    if cmd.confirms:
        return None  # it grants nothing (test_a_late_confirmation_grants_nothing)
    claim = cmd.claims[0]  # writers come one at a time
    fence = new_fence(before, floor)
    grant = claim.grant(Mode.WRITE, fence, now)
    grants = (grant,)
    value = mutex_record_value(grants, wall)
    record = Doorman(
        last=fence,
        grants=grants,
        number=before.number,
        seat=value,
        endings=before.endings,
        created=before.created or wall,
        updated=wall,
        extra=before.extra,
    )
    seat = MutexRecord(value, grant.expires)
    return record, seat, Granted(grants, now), (), None


def _fast_release(
    before: Doorman, cmd: Release, now: int, wall: int
) -> FastStep | None:
    if not _writer_leaves(before, cmd, now):
        return None
    record = Doorman(
        last=before.last,
        number=before.number,
        admit_upto=before.number,
        turns=before.turns,
        created=before.created or wall,
        updated=wall,
        extra=before.extra,
    )
    return record, None, Released(held=True), (), None


def _hand_over(
    before: Doorman, cmd: Release, now: int, floor: int, wall: int
) -> FastStep | None:
    head = before.queue[0]
    if before.pushed or not head.ticket or head.ticket == cmd.ticket:
        return None
    if not _writer_leaves(before, cmd, now):
        return None
    if before.turns >= MAX_LOCAL_TURNS:
        return None
    for entry in before.queue:
        if entry.mode is Mode.READ or not _waits(entry, now):
            return None
    fence = new_fence(before, floor)
    pushed = head.pushed_grant(fence, now)
    grants = (pushed,)
    value = mutex_record_value(grants, wall)
    record = Doorman(
        last=fence,
        grants=grants,
        queue=(replace(head, claim_until=pushed.expires), *before.queue[1:]),
        number=before.number,
        admit_upto=before.number,
        seat=value,
        turns=before.turns + 1,
        pushed=True,
        created=before.created or wall,
        updated=wall,
        extra=before.extra,
    )
    seat = MutexRecord(value, pushed.expires)
    return record, seat, Released(held=True), (head.client_id,), pushed


def _confirm(before: Doorman, cmd: Acquire, now: int, wall: int) -> FastStep | None:
    grant, claim = before.grants[0], cmd.claims[0]
    if claim.ticket != grant.ticket or cmd.mode is not Mode.WRITE or grant.dead(now):
        return None
    own = before.entry(cmd.client_id, Mode.WRITE)
    if own is None or own.expires <= now or before.upgraded:
        return None
    others: list[QueueEntry] = []
    for entry in before.queue:
        if entry is not own:
            if not _waits(entry, now):
                return None
            others.append(entry)
    number = before.number
    if cmd.more:
        number += 1
        others.append(cmd.entry_behind(own, number, now))
    expires = longer(grant.expires, claim.lease, now)
    grant = replace(grant, since=now, expires=expires)
    grants = (grant,)
    record = Doorman(
        last=before.last,
        grants=grants,
        queue=tuple(others),
        number=number,
        seat=before.seat,
        turns=before.turns,
        endings=before.endings,
        created=before.created or wall,
        updated=wall,
        extra=before.extra,
    )
    reply = Granted(grants, now, placed=bool(cmd.more))
    return record, MutexRecord(before.seat or "", expires), reply, (), None


def _writer_leaves(before: Doorman, cmd: Release, now: int) -> bool:
    # It holds alone, and asks for no other task.
    if cmd.then or len(before.grants) != 1 or before.upgraded or before.endings:
        return False
    grant = before.grants[0]
    known = grant.ticket == cmd.ticket and cmd.mode in (None, Mode.WRITE)
    return known and grant.mode is Mode.WRITE and not grant.dead(now)


def _waits(entry: QueueEntry, now: int) -> bool:
    # Neither to be dropped nor offered the resource.
    return entry.expires > now and entry.claim_until is None
