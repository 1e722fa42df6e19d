"""Short cuts of the transition for whoever is alone: in, and out again.

Most locks are free when somebody comes, and nobody waits when they are given back.
Both steps are told here at a fraction of the cost, and exactly as the transition would
tell them (``tests/core/test_fast_path.py``). Records are made anew: little outlives
them.
"""

from __future__ import annotations

from aiorwlock_remote.core.commands import Acquire, Command, Granted, Release, Released
from aiorwlock_remote.core.doorman import Doorman, MutexRecord, seat_value
from aiorwlock_remote.core.ticket import Mode

Lone = tuple[Doorman, MutexRecord | None, Granted | Released]


def fast_path(
    before: Doorman,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int,
) -> Lone | None:
    """Record, seat and reply after the step; None: it is not that simple."""
    if before.queue or before.upgrader is not None or before.barred_until:
        return None
    if seat is None:
        if isinstance(command, Acquire) and not before.grants:
            return _in(before, command, now, floor, wall)
    elif isinstance(command, Release) and seat.value == before.seat:
        return _out(before, command, now, wall)
    return None


def _in(before: Doorman, cmd: Acquire, now: int, floor: int, wall: int) -> Lone | None:
    """One writer enters an idle resource."""
    if cmd.mode is not Mode.WRITE or cmd.more or before.seat is not None:
        return None
    claim = cmd.claims[0]  # writers come one at a time
    fence = max(before.last + 1, floor)
    grant = claim.grant(Mode.WRITE, fence, now)
    grants = (grant,)
    value = seat_value(grants, wall)
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
    return record, MutexRecord(value, grant.expires), Granted(grants, now)


def _out(before: Doorman, cmd: Release, now: int, wall: int) -> Lone | None:
    """The one writer leaves."""
    if cmd.then or len(before.grants) != 1 or before.upgraded or before.endings:
        return None
    grant = before.grants[0]
    known = grant.ticket == cmd.ticket and cmd.mode in (None, Mode.WRITE)
    if not known or grant.mode is not Mode.WRITE or grant.dead(now):
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
    return record, None, Released(held=True)
