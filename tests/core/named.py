"""Which tickets a command names: those it may admit, and those it may end."""

from __future__ import annotations

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant, MutexRecord
from aiorwlock_remote.core.ticket import Mode


def claims(command: Command) -> dict[str, Claim]:
    """Return the claims that a command may admit, by ticket."""
    match command:
        case Acquire():
            return {c.ticket: c for c in command.claims}
        case Release():
            return {c.ticket: c for ask in command.then for c in ask.claims}
        case Downgrade() | Upgrade() | Adopt():
            return {command.claim.ticket: command.claim}
        case _:
            return {}


def acquires(command: Command) -> tuple[Acquire, ...]:
    """Return the acquires in a command."""
    if isinstance(command, Release):
        return command.then
    return (command,) if isinstance(command, Acquire) else ()


def names(command: Command, grant: Grant) -> bool:
    """Return whether a command may end this grant."""
    match command:
        case Release():
            return command.ticket == grant.ticket
        case Withdraw():
            return grant.ticket in command.tickets
        case Downgrade() | Upgrade() | Adopt():
            return command.ticket == grant.ticket
        case ForceRelease():
            return (command.holder, command.fence) == (grant.holder, grant.fence)
        case _:
            return False


def gives_up(command: Command, seat: MutexRecord) -> bool:
    """Return whether a command may remove this foreign record."""
    match command:
        case Release():
            return command.ticket == seat.ticket and command.mode is not Mode.READ
        case Withdraw():
            return seat.ticket in command.tickets
        case Renew():
            return seat.ticket in dict(command.tickets)
        case Acquire():
            return command.confirms and seat.ticket == command.claims[0].ticket
        case Downgrade() | Upgrade() | Adopt():
            return seat.ticket in (command.ticket, command.claim.ticket)
        case ForceRelease():
            return command.seat == seat.value
