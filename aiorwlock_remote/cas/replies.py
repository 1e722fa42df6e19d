"""What a reply says about grants, and whom a command asks to let in."""

from __future__ import annotations

from collections.abc import Callable

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Answer,
    Claim,
    Command,
    Downgrade,
    Granted,
    Release,
    Released,
    Renewed,
    Reply,
    Upgrade,
)
from aiorwlock_remote.core.doorman import Doorman, Grant
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.core.value import replace


def with_fences(step: Step, record: Doorman | None) -> Reply:
    """Its reply with the fences of the record, which the store may have chosen."""
    reply = step.reply
    if record is None or record is step.record:
        return reply

    def told(grant: Grant) -> Grant:
        return record.grant(grant.ticket) or grant

    def granted(entry: Granted) -> Granted:
        return replace(entry, grants=tuple(told(grant) for grant in entry.grants))

    if isinstance(reply, Renewed):
        outcomes = tuple(told(o) if isinstance(o, Grant) else o for o in reply.outcomes)
        return replace(reply, outcomes=outcomes)
    return each_grant(reply, granted)


def each_grant(reply: Reply, change: Callable[[Granted], Granted]) -> Reply:
    """The reply with what it says about being granted changed."""
    if isinstance(reply, Granted):
        return change(reply)
    if isinstance(reply, Released) and reply.then:
        then: tuple[Answer, ...] = tuple(
            change(entry) if isinstance(entry, Granted) else entry
            for entry in reply.then
        )
        return replace(reply, then=then)
    return reply


def claims_of(command: Command) -> tuple[Claim, ...]:
    """Who would be in if this had happened."""
    match command:
        case Acquire():
            return command.claims
        case Release():
            return tuple(claim for acquire in command.then for claim in acquire.claims)
        case Downgrade() | Upgrade() | Adopt():
            return (command.claim,)
        case _:
            return ()
