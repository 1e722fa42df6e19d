"""Calls that acquire and release under tickets that the caller chooses."""

from __future__ import annotations

from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Release, Released
from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.ticket import Mode, Policy, check_ticket, holder_of
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds, micros
from aiorwlock_remote.locks.session import Session


class TicketCalls:
    """Base of ``Locks``: acquires and releases under tickets that the caller chooses.
    No call waits for a lock, and each may be repeated with the same ticket.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def acquire_mutex_lock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        ticket: str,
        *,
        lease: float | None = None,
    ) -> bool:
        """Try to hold the resource alone under a ticket of your own; do not wait.

        The grant is not renewed and has by default no lease: it lasts until it is
        released or forced. Do not use a ticket again after its release: a copy of the
        release that arrives late would end the new grant. If the caller is cancelled,
        the call may have been carried out: repeat it, or release.

        Args:
            resource_type: kind of the resource: ``"order"``.
            resource_id: which one: 42.
            ticket: the secret of this holder, any text without a comma.
            lease: seconds after which the grant ends; None: never.

        Returns:
            True if this ticket holds the resource now; it may have held it before.
            False if another ticket holds it, this one holds it in another mode, or
            other tasks are before it in the queue.

        Raises:
            ConfigurationError: a name, ticket or lease is not valid.
            Closed: the ``Locks`` is closed, forked or of another loop.
            BackendError: the store failed. Unless the error says ``nothing_done``, the
                call may have been carried out: repeat it, or release. The library does
                not undo it, as the ticket may have held the resource before.
        """
        name = resource_type, resource_id
        return await self._acquire(name, ticket, Mode.WRITE, lease)

    async def release_mutex_lock(
        self, resource_type: str, resource_id: ResourceId, ticket: str
    ) -> bool:
        """Release a mutex. Return True if this ticket held it, else False.

        Cancellation and errors are those of ``acquire_mutex_lock``.
        """
        return await self._release((resource_type, resource_id), ticket, Mode.WRITE)

    async def acquire_readers_lock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        ticket: str,
        *,
        lease: float | None = None,
    ) -> bool:
        """Try to become a reader under a ticket of your own; do not wait.

        Return True if this ticket is a reader now, False if a writer holds the resource
        or waits for it. Arguments, cancellation and errors are those of
        ``acquire_mutex_lock``.
        """
        name = resource_type, resource_id
        return await self._acquire(name, ticket, Mode.READ, lease)

    async def release_readers_lock(
        self, resource_type: str, resource_id: ResourceId, ticket: str
    ) -> bool:
        """End a reader's grant. Return True if this ticket was a reader, else False.

        Cancellation and errors are those of ``acquire_mutex_lock``.
        """
        return await self._release((resource_type, resource_id), ticket, Mode.READ)

    async def acquire_writer_lock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        ticket: str,
        *,
        lease: float | None = None,
    ) -> bool:
        """Try to become the writer under a ticket of your own; do not wait.

        Return True if this ticket is the writer now. If not, it waits as the pending
        writer for three poll intervals (a few seconds), which keeps new readers out:
        repeat the call with the same ticket within that time. Arguments, cancellation
        and errors are those of ``acquire_mutex_lock``.
        """
        name = resource_type, resource_id
        return await self._acquire(name, ticket, Mode.WRITE, lease, pending=True)

    async def release_writer_lock(
        self, resource_type: str, resource_id: ResourceId, ticket: str
    ) -> bool:
        """End a writer's grant. Return True if this ticket was the writer, else False.

        Cancellation and errors are those of ``acquire_mutex_lock``.
        """
        return await self._release((resource_type, resource_id), ticket, Mode.WRITE)

    async def _acquire(
        self,
        name: tuple[str, ResourceId],
        ticket: str,
        mode: Mode,
        lease: float | None,
        *,
        pending: bool = False,
    ) -> bool:
        session = self._session
        session.check()
        target = session.resource(*name)
        check_seconds("lease", lease, least=MIN_LEASE)
        length = None if lease is None else micros(lease)
        # Only the ticket is the caller's: a repeated call finds its own grant by it, so
        # that nothing has to be undone after a failure.
        claim = Claim(check_ticket(ticket), length, session.client.requester())
        # A writer that is refused becomes the pending writer, which cannot be woken: it
        # repeats the call in its own time. So its claim window is as long as its entry
        # lives.
        entry_ttl = micros(session.client.store.poll_policy.entry_ttl)
        command = Acquire(
            (claim,),
            mode,
            Policy.WRITER,
            client_id=f"ticket:{holder_of(ticket)}" if pending else "",
            may_queue=pending,
            entry_ttl=entry_ttl,
            claim_window=entry_ttl,
        )
        reply = await session.client.request(target, command)
        return isinstance(reply, Granted)

    async def _release(
        self, name: tuple[str, ResourceId], ticket: str, mode: Mode
    ) -> bool:
        session = self._session
        session.check()
        target = session.resource(*name)
        command = Release(check_ticket(ticket), mode)
        reply = await session.client.request(target, command)
        assert isinstance(reply, Released)
        return reply.held
