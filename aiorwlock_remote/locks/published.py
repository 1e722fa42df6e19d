"""The published calls (S0): explicit tickets, non-blocking, repeatable.

No keeper and, by default, no lease: a grant lasts until it is released or forced. The
same ticket and mode asked again while held: True, and nothing changes; another mode:
False. Release compares the ticket. Who reuses a ticket after releasing it carries the
risk of a late release of its own.
"""

from __future__ import annotations

from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Release, Released
from aiorwlock_remote.core.lease import MIN_LEASE, check_seconds, micros
from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.ticket import Mode, Policy, check_ticket, holder_of
from aiorwlock_remote.locks.session import Session


async def acquire(
    session: Session,
    name: tuple[str, ResourceId],
    ticket: str,
    mode: Mode,
    lease: float | None,
    *,
    pending: bool = False,
) -> bool:
    """One try. ``pending``: a writer that is refused becomes the pending writer."""
    session.check()
    target = resource(*name)
    check_seconds("lease", lease, least=MIN_LEASE)
    length = None if lease is None else micros(lease)
    claim = Claim(check_ticket(ticket), length, session.drive.asking.who())
    command = Acquire(
        (claim,),
        mode,
        Policy.WRITER,
        gate=f"ticket:{holder_of(ticket)}" if pending else "",
        may_queue=pending,
        place_life=micros(session.drive.store.pace.place_life),
        window=micros(session.drive.store.pace.claim_window),
    )
    return isinstance(await session.drive.store.step(target, command), Granted)


async def release(
    session: Session, name: tuple[str, ResourceId], ticket: str, mode: Mode
) -> bool:
    """Whether the ticket was the holder, in that mode."""
    session.check()
    target = resource(*name)
    command = Release(check_ticket(ticket), mode)
    reply = await session.drive.store.step(target, command)
    assert isinstance(reply, Released)
    return reply.held
