"""Downgrade, upgrade, adopt and share: each returns a new ``Lease`` of a grant."""

from __future__ import annotations

import math

from aiorwlock_remote.core.commands import (
    Adopt,
    Conflict,
    Downgrade,
    Granted,
    NotHeld,
    Renew,
    Renewed,
    Upgrade,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import UpgradeConflict
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease, LeaseState
from aiorwlock_remote.runtime.store_client import StoreClient


async def downgrade(
    client: StoreClient, old: Lease, request: AcquireRequest
) -> Lease | None:
    """Turn a writer's grant into a reader's; return the reader's lease. Return None if
    ``old``, the writer's lease, has ended. ``request`` holds the options of the new
    grant. If the caller is cancelled during the request, both grants are given up.
    """
    command = Downgrade(old.ticket, client.claim(request))
    return await _move(client, old, request, command)


async def upgrade(
    client: StoreClient, old: Lease, request: AcquireRequest, timeout: float | None
) -> Lease | None:
    """Turn a reader's grant into a writer's, as soon as all other readers have left.

    Return the new lease; None if the others did not leave within ``timeout`` seconds
    (None: wait for ever), or if ``old``, the reader's lease, has ended. If the caller
    is cancelled while a request is under way, both grants are given up; if it is
    cancelled during the wait, the old lease stays. A request that is under way when the
    time is up is awaited: its reply may be the grant. ``request`` holds the options of
    the new grant.

    Raises:
        UpgradeConflict: another reader is waiting for an upgrade already.
    """
    poll_policy, clock = client.store.poll_policy, client.clock
    command = Upgrade(
        old.ticket,
        client.claim(request),
        client.client_id,
        may_wait=timeout is None or timeout > 0,
        entry_ttl=micros(poll_policy.entry_ttl),
    )
    # Without a wait the store notes nothing that would have to be undone.
    if not command.may_wait:
        return await _move(client, old, request, command)
    signal = client.queues.listen(old.resource)
    until = math.inf if timeout is None else clock.now() + timeout
    new: Lease | None = None
    try:
        while new is None and _held(old):
            signal.clear()
            new = await _move(client, old, request, command)
            # Only the wait ends with the time: a request that is cut off would take
            # the reader's grant along.
            left = until - clock.now()
            if new is not None or not _held(old) or left <= 0:
                break
            await signal.wait(min(poll_policy.poll_min, left))
        return new
    finally:
        client.queues.unlisten(old.resource, signal)
        if new is None:
            client.stop_upgrade(old.resource, old.ticket)


async def adopt(
    client: StoreClient, ticket: str, request: AcquireRequest
) -> Lease | None:
    """Take over the grant of ``ticket``, which ``Held.detach`` gave away.

    Return the lease of the grant under a new ticket; None if the grant is gone.
    ``request`` names the resource, mode and options. If the caller is cancelled while
    the request is under way, the new ticket is withdrawn: the grant has ended, or still
    belongs to the old ticket.

    Raises:
        AcquireUncertain: it is not known whether the grant was taken over.
        Closed: the ``Locks`` was closed meanwhile.
        BackendError: the store failed, or no thread could be started to renew.
    """
    client.keeper.ready(request.terms)
    claim = client.claim(request)
    sent_at = client.clock.now()
    reply = await client.ask(request.resource, Adopt(ticket, claim), claim)
    if not isinstance(reply, Granted):
        return None
    return client.lease(request, reply.grants[0], sent_at)


async def share(
    client: StoreClient, ticket: str, request: AcquireRequest
) -> Lease | None:
    """Return a lease of the grant with ``ticket``, which its owner holds as well; None
    if the grant is gone. ``request`` names its resource, mode and options. Raise
    ``BackendError`` if the store failed, or no thread could be started to renew.
    """
    client.keeper.ready(request.terms)
    lease = request.terms.lease
    renewal = Renew(((ticket, None if lease is None else micros(lease)),))
    sent_at = client.clock.now()
    reply = await client.request(request.resource, renewal)
    assert isinstance(reply, Renewed)
    grant = reply.outcomes[0]
    if not isinstance(grant, Grant):
        return None
    return client.lease(request, grant, sent_at)


def _held(lease: Lease) -> bool:
    return lease.state is LeaseState.HELD and not lease.expired()


async def _move(
    client: StoreClient,
    old: Lease,
    request: AcquireRequest,
    command: Downgrade | Upgrade,
) -> Lease | None:
    claim, sent_at = command.claim, client.clock.now()

    def give_up() -> None:
        withdrawn = client.withdraw(old.resource, claim, instead_of=old.ticket)
        withdrawn.log_failure()

    with old.moving_to(claim.ticket):
        with client.in_flight.under(give_up):
            try:
                reply = await client.request(old.resource, command)
            except BaseException as exc:
                # The store may have replaced the old ticket by the new one. Neither is
                # known to be held, so both go; else the old grant is as it was.
                if is_uncertain(exc):
                    old.end(LeaseState.RELEASED)
                    give_up()
                raise
        if isinstance(reply, Conflict):
            raise UpgradeConflict(resource=old.resource.label)
        if isinstance(reply, NotHeld):
            old.lose(reply.reason)
        if not isinstance(reply, Granted):
            return None
        if not old.end(LeaseState.RELEASED):
            # The old lease was released or lost while the request was under way: its
            # holder must not get a new one (test_it_is_released_while_it_is_moved).
            client.withdraw(old.resource, claim).log_failure()
            return None
        return client.lease(request, reply.grants[0], sent_at)
