"""Downgrade, upgrade, adopt: one step each, a new lease under a new ticket."""

from __future__ import annotations

import math
from functools import partial

from aiorwlock_remote.core.commands import (
    Adopt,
    Claim,
    Conflict,
    Downgrade,
    Granted,
    NotHeld,
    Renew,
    Renewed,
    Reply,
    Upgrade,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import UpgradeConflict
from aiorwlock_remote.runtime.lease import Lease, LeaseState
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import StoreClient


async def downgrade(
    drive: StoreClient, old: Lease, request: AcquireRequest
) -> Lease | None:
    """Writer → reader; None if the old lease has ended.

    Interrupted while the request is under way, both tickets are given up.
    """
    command = Downgrade(old.ticket, drive.asking.claim(request))
    return await _move(drive, old, request, command)


async def upgrade(
    drive: StoreClient, old: Lease, request: AcquireRequest, timeout: float | None
) -> Lease | None:
    """Reader → writer; None if the others did not leave, or the old lease has ended.

    Interrupted while the request is under way, both tickets are given up; while it
    waits for the others to leave, the old lease stays. A request under way when the
    time is up is waited for.

    Raises:
        UpgradeConflict: another reader is waiting already.
    """
    pace = drive.store.pace
    command = Upgrade(
        old.ticket,
        drive.asking.claim(request),
        drive.client_id,
        may_wait=timeout is None or timeout > 0,
        entry_ttl=micros(pace.entry_ttl),
    )
    if not command.may_wait:
        return await _move(drive, old, request, command)
    bell, clock = drive.room.listen(old.resource), drive.host.clock
    until = math.inf if timeout is None else clock.now() + timeout
    new: Lease | None = None
    try:
        while new is None and _held(old):
            bell.clear()
            new = await _move(drive, old, request, command)
            # Only waiting ends with the time: a request would take the grant along.
            left = until - clock.now()
            if new is not None or not _held(old) or left <= 0:
                break
            await bell.wait(min(pace.poll_min, left))
        return new
    finally:
        drive.room.unlisten(old.resource, bell)
        if new is None:
            drive.step_back(old.resource, old.ticket)


async def adopt(
    drive: StoreClient, ticket: str, request: AcquireRequest
) -> Lease | None:
    """The grant of a ticket that somebody gave away; None if it is gone.

    Interrupted while the request is under way, the new ticket is given up: the grant
    is over, or still that of the old ticket.

    Raises:
        AcquireUncertain: the store never said.
        Closed: the ``Locks`` was closed meanwhile.
        BackendError: the store failed, or no thread can be had to renew it.
    """
    drive.keeper.ready(request.terms)
    claim = drive.asking.claim(request)
    sent_at = drive.host.clock.now()
    reply = await drive.ask(request.resource, Adopt(ticket, claim), claim)
    if not isinstance(reply, Granted):
        return None
    return drive.lease(request, reply.grants[0], sent_at)


async def share(
    drive: StoreClient, ticket: str, request: AcquireRequest
) -> Lease | None:
    """The grant of a ticket, beside whoever goes on holding it; None if it is gone.

    Raises:
        BackendError: the store failed, or no thread can be had to renew it.
    """
    drive.keeper.ready(request.terms)
    lease = request.terms.lease
    renewal = Renew(((ticket, None if lease is None else micros(lease)),))
    sent_at = drive.host.clock.now()
    reply = await drive.answer(partial(drive.store.step, request.resource, renewal))
    assert isinstance(reply, Renewed)
    grant = reply.outcomes[0]
    if not isinstance(grant, Grant):
        return None
    return drive.lease(request, grant, sent_at)


def _held(lease: Lease) -> bool:
    return lease.state is LeaseState.HELD and not lease.expired()


async def _move(
    drive: StoreClient,
    old: Lease,
    request: AcquireRequest,
    command: Downgrade | Upgrade,
) -> Lease | None:
    with old.moving_to(command.claim.ticket):
        reply, sent_at = await _step(drive, old, command)
        return _moved(drive, old, request, command.claim, reply, sent_at)


async def _step(
    drive: StoreClient, old: Lease, command: Downgrade | Upgrade
) -> tuple[Reply, float]:
    sent_at = drive.host.clock.now()
    give_up = partial(_give_up, drive, old, command.claim)
    with drive.closing.under(give_up):
        ask = partial(drive.store.step, old.resource, command)
        try:
            return await drive.answer(ask), sent_at
        except BaseException as exc:
            if is_uncertain(exc):  # else the old grant is as it was
                old.end(LeaseState.RELEASED)
                give_up()
            raise


def _give_up(drive: StoreClient, old: Lease, claim: Claim) -> None:
    drive.withdraw(old.resource, claim, instead_of=old.ticket).log_failure()


def _moved(
    drive: StoreClient,
    old: Lease,
    request: AcquireRequest,
    claim: Claim,
    reply: Reply,
    sent_at: float,
) -> Lease | None:
    if isinstance(reply, Conflict):
        raise UpgradeConflict(resource=old.resource.label)
    if isinstance(reply, NotHeld):
        old.lose(reply.reason)
    if not isinstance(reply, Granted):
        return None
    grant = reply.grants[0]
    if not old.end(LeaseState.RELEASED):  # it ended meanwhile, and this with it
        drive.withdraw(old.resource, claim).log_failure()
        return None
    return drive.lease(request, grant, sent_at)
