"""Moves of a grant to another mode or ticket: downgrade, upgrade and adopt.

``transition`` carries them out as parts of a step.
"""

from __future__ import annotations

from aiorwlock_remote.core.admission import admitted
from aiorwlock_remote.core.commands import (
    BARRED,
    HELD,
    Adopt,
    Claim,
    Conflict,
    Downgrade,
    Granted,
    IllegalCommand,
    NotHeld,
    Refused,
    Upgrade,
)
from aiorwlock_remote.core.doorman import (
    Doorman,
    PendingUpgrade,
    StepContext,
    describe_holders,
    new_fence,
    without_own_record,
)
from aiorwlock_remote.core.mutex_record import confirmed, drop_grants, why_gone
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.value import replace, value


@value
class MustWait:
    """Stands for a ``Waiting`` reply, which is made at the end of the step."""

    client_id: str
    mode: Mode


MoveReply = Granted | NotHeld | Conflict | Refused | MustWait


def move(
    doorman: Doorman, cmd: Downgrade | Upgrade | Adopt, at: StepContext
) -> tuple[Doorman, StepContext, MoveReply]:
    """Carry out a move; also return the context in which the step goes on.

    If neither ticket has a grant, a mutex record with one of the two tickets does not
    count as another program's from then on.
    """
    draft: MoveReply
    doorman = confirmed(doorman, cmd.ticket)
    match cmd:
        case Downgrade():
            doorman, draft = downgrade(doorman, cmd, at)
        case Upgrade():
            doorman, draft = upgrade(doorman, cmd, at)
        case Adopt():
            doorman, draft = adopt(doorman, cmd, at)
    # Neither ticket is a grant any more: the caller learns it now, so its own ticket
    # must leave the mutex record, where nothing else could remove it (model Seat).
    if isinstance(draft, NotHeld):
        at = without_own_record(at, (cmd.ticket, cmd.claim.ticket))
    return doorman, at, draft


def downgrade(
    doorman: Doorman, cmd: Downgrade, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """Turn a write grant into a read grant; readers waiting now may join it."""
    done = doorman.grant(cmd.claim.ticket)
    if done is not None and done.mode is Mode.READ:
        return doorman, Granted((done,), at.now)
    old = doorman.grant(cmd.ticket)
    if old is None:
        return doorman, NotHeld(why_gone(doorman, holder_of(cmd.ticket)))
    if old.mode is not Mode.WRITE:
        raise IllegalCommand("only a writer can be downgraded")
    # In a new phase: with the writer's fence, a session of the reader would accept what
    # its own expired writer still sends (model LockRec, ``downgrade_keeps_phase``).
    return _converted(drop_grants(doorman, (old,)), Mode.READ, cmd.claim, at)


def upgrade(
    doorman: Doorman, cmd: Upgrade, at: StepContext
) -> tuple[Doorman, MoveReply]:
    """Turn a reader into the writer if no other reader holds the resource.

    Otherwise let the reader wait for the others if ``cmd.may_wait``, else refuse.
    """
    done = doorman.grant(cmd.claim.ticket)
    if done is not None and done.mode is Mode.WRITE:
        return doorman, Granted((done,), at.now)
    old = doorman.grant(cmd.ticket)
    if old is None:
        return doorman, NotHeld(why_gone(doorman, holder_of(cmd.ticket)))
    if old.mode is not Mode.READ:
        raise IllegalCommand("only a reader can be upgraded")
    slot = doorman.upgrader
    # Two waiting upgraders would wait for each other for ever (LockLive,
    # ``two_upgraders``).
    if slot is not None and slot.ticket != cmd.ticket:
        return doorman, Conflict()
    # An expired reader's lock delay holds for an upgrade as for any writer
    # (test_no_upgrade_during_a_lock_delay).
    barred = doorman.barred_until > at.now
    # Admitted readers go first. A reader that upgrades at once is admitted again by the
    # end of its own write phase, and would lock them out each time (LockLive,
    # ``drawn_upgrade_rushes``).
    first = admitted(doorman, at.now)
    if len(doorman.grants) == 1 and not barred and not first:
        doorman = replace(drop_grants(doorman, (old,)), admit_upto=0, admit_until=0)
        doorman, granted = _converted(doorman, Mode.WRITE, cmd.claim, at)
        return replace(doorman, upgraded=True), granted
    if not cmd.may_wait:
        why, wait = HELD, None
        if barred:
            why, wait = BARRED, doorman.barred_until - at.now
        return doorman, Refused(why, wait, describe_holders(doorman, at.foreign))
    slot = PendingUpgrade(cmd.ticket, cmd.client_id, at.now + cmd.entry_ttl)
    return replace(doorman, upgrader=slot), MustWait(cmd.client_id, Mode.WRITE)


def adopt(
    doorman: Doorman, cmd: Adopt, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """Move a grant to the ticket in ``cmd.claim``; no waiting client can enter."""
    done = doorman.grant(cmd.claim.ticket)
    if done is not None:
        return doorman, Granted((done,), at.now)
    old = doorman.grant(cmd.ticket)
    if old is None:
        return doorman, NotHeld(why_gone(doorman, holder_of(cmd.ticket)))
    # A writer's new owner has a new phase, so that what the former owner still sends is
    # stale (LockRec, ``adopted_phase``). A reader stays in the phase of all readers.
    # A permit has a fence of its own.
    fence = doorman.last if old.mode is Mode.READ else new_fence(doorman, at.floor)
    grant = cmd.claim.grant(old.mode, fence, at.now, old.limit)
    grants = tuple(grant if g is old else g for g in doorman.grants)
    slot = doorman.upgrader
    if slot is not None and slot.ticket == old.ticket:
        # It was the former owner that waited; the new one did not ask for an upgrade
        # (test_an_adopted_upgrader_does_not_upgrade).
        slot = None
    doorman = replace(doorman, last=fence, grants=grants, upgrader=slot)
    return doorman, Granted((grant,), at.now)


def _converted(
    doorman: Doorman, mode: Mode, claim: Claim, at: StepContext
) -> tuple[Doorman, Granted]:
    fence = new_fence(doorman, at.floor)
    grant = claim.grant(mode, fence, at.now)
    return replace(doorman, last=fence, grants=(grant,)), Granted((grant,), at.now)
