"""Moves: writer → reader, reader → writer, and from one owner to another.

A downgrade that kept its phase number would let a reader's session accept what its own
expired writer still sends (model LockRec, config ``downgrade_keeps_phase``). So each
move of a writer, or to one, starts a new phase. Readers share a phase, and who adopts
a reader's grant is one more of them.
"""

from __future__ import annotations

from aiorwlock_remote.core.acquire import MustWait
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
from aiorwlock_remote.core.doorman import Doorman, PendingUpgrade
from aiorwlock_remote.core.mutex_record import drop_grants, why_gone
from aiorwlock_remote.core.step_context import StepContext, describe, new_fence
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.value import replace


def downgrade(
    door: Doorman, cmd: Downgrade, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """Writer → reader; the readers waiting at that moment may join."""
    done = door.grant(cmd.claim.ticket)
    if done is not None and done.mode is Mode.READ:
        return door, Granted((done,), at.now)
    old = door.grant(cmd.ticket)
    if old is None:
        return door, NotHeld(why_gone(door, holder_of(cmd.ticket)))
    if old.mode is not Mode.WRITE:
        raise IllegalCommand("only a writer can be downgraded")
    return _moved(drop_grants(door, (old,)), Mode.READ, cmd.claim, at)


def upgrade(
    door: Doorman, cmd: Upgrade, at: StepContext
) -> tuple[Doorman, Granted | NotHeld | Conflict | Refused | MustWait]:
    """The only reader → writer; among several, one at most may wait to be the only."""
    done = door.grant(cmd.claim.ticket)
    if done is not None and done.mode is Mode.WRITE:
        return door, Granted((done,), at.now)
    old = door.grant(cmd.ticket)
    if old is None:
        return door, NotHeld(why_gone(door, holder_of(cmd.ticket)))
    if old.mode is not Mode.READ:
        raise IllegalCommand("only a reader can be upgraded")
    slot = door.upgrader
    if slot is not None and slot.ticket != cmd.ticket:
        return door, Conflict()
    barred = door.barred_until > at.now  # another reader's lease ran out just now
    # Admitted readers go first: who upgrades is in already, and would lock them out
    # again and again (LockLive, ``drawn_upgrade_rushes``).
    first = admitted(door, at.now)
    if len(door.grants) == 1 and not barred and not first:
        door = replace(drop_grants(door, (old,)), admit_upto=0, admit_until=0)
        door, granted = _moved(door, Mode.WRITE, cmd.claim, at)
        return replace(door, upgraded=True), granted
    if not cmd.may_wait:
        why, wait = HELD, None
        if barred:
            why, wait = BARRED, door.barred_until - at.now
        return door, Refused(why, wait, describe(door, at.foreign))
    slot = PendingUpgrade(cmd.ticket, cmd.client_id, at.now + cmd.entry_ttl)
    return replace(door, upgrader=slot), MustWait(cmd.client_id, Mode.WRITE)


def adopt(
    door: Doorman, cmd: Adopt, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """From one owner to another; nobody left, so nobody who waits is let in."""
    done = door.grant(cmd.claim.ticket)
    if done is not None:
        return door, Granted((done,), at.now)
    old = door.grant(cmd.ticket)
    if old is None:
        return door, NotHeld(why_gone(door, holder_of(cmd.ticket)))
    fence = new_fence(door, at.floor) if old.mode is Mode.WRITE else door.last
    grant = cmd.claim.grant(old.mode, fence, at.now)
    grants = tuple(grant if g is old else g for g in door.grants)
    slot = door.upgrader
    if slot is not None and slot.ticket == old.ticket:
        slot = None  # who waited there gave it away
    door = replace(door, last=fence, grants=grants, upgrader=slot)
    return door, Granted((grant,), at.now)


def _moved(
    door: Doorman, mode: Mode, claim: Claim, at: StepContext
) -> tuple[Doorman, Granted]:
    fence = new_fence(door, at.floor)
    grant = claim.grant(mode, fence, at.now)
    return replace(door, last=fence, grants=(grant,)), Granted((grant,), at.now)
