"""The published calls (S0): one call shape for all stores."""

from __future__ import annotations

from functools import partial

from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Release, Released
from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.ticket import Mode, Policy, check_ticket, holder_of
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds, micros
from aiorwlock_remote.locks.session import Session


class TicketCalls:
    """Locking with tickets of your own: non-blocking, repeatable."""

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
        """Try to hold the resource alone under a ticket of your own.

        True: held by this ticket, as it may have been before; then nothing changes.
        False: held by another or in another mode, or others are first. No keeper and,
        by default, no lease: it lasts until it is released or forced. Who reuses a
        ticket after releasing it carries the risk of a late release of its own.
        Cancelled, the call may have been carried out: repeat it, or release.

        Raises:
            ConfigurationError: a name, ticket or lease that cannot be used.
            Closed: the ``Locks`` is closed, forked or of another loop.
            BackendError: the store failed. Unless the error says ``nothing_done``, the
                call may have been carried out: repeat it, or release. It is not taken
                back for you, for the ticket may have held the resource before.
        """
        name = resource_type, resource_id
        return await _acquire(self._session, name, ticket, Mode.WRITE, lease)

    async def release_mutex_lock(
        self, resource_type: str, resource_id: ResourceId, ticket: str
    ) -> bool:
        """Give back what ``acquire_mutex_lock`` got; whether this ticket held it.

        Cancels and raises as that does.
        """
        name = resource_type, resource_id
        return await _release(self._session, name, ticket, Mode.WRITE)

    async def acquire_readers_lock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        ticket: str,
        *,
        lease: float | None = None,
    ) -> bool:
        """Try to read under a ticket of your own; refused while a writer is pending.

        As ``acquire_mutex_lock`` in all else.
        """
        name = resource_type, resource_id
        return await _acquire(self._session, name, ticket, Mode.READ, lease)

    async def release_readers_lock(
        self, resource_type: str, resource_id: ResourceId, ticket: str
    ) -> bool:
        """Stop reading; whether this ticket was a reader.

        Cancels and raises as ``acquire_mutex_lock`` does.
        """
        name = resource_type, resource_id
        return await _release(self._session, name, ticket, Mode.READ)

    async def acquire_writer_lock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        ticket: str,
        *,
        lease: float | None = None,
    ) -> bool:
        """Try to write; if refused, be the pending writer for three poll intervals.

        Repeat the call with the same ticket within them to enter. As
        ``acquire_mutex_lock`` in all else.
        """
        name = resource_type, resource_id
        return await _acquire(
            self._session, name, ticket, Mode.WRITE, lease, pending=True
        )

    async def release_writer_lock(
        self, resource_type: str, resource_id: ResourceId, ticket: str
    ) -> bool:
        """Stop writing; whether this ticket was the writer.

        Cancels and raises as ``acquire_mutex_lock`` does.
        """
        name = resource_type, resource_id
        return await _release(self._session, name, ticket, Mode.WRITE)


async def _acquire(
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
    target = resource(*name, session.prefix)
    check_seconds("lease", lease, least=MIN_LEASE)
    length = None if lease is None else micros(lease)
    claim = Claim(check_ticket(ticket), length, session.drive.asking.who())
    # Nobody can be woken behind such a gate: it comes in its own time, so that the
    # resource is kept for it as long as its place lives.
    life = micros(session.drive.store.pace.entry_ttl)
    command = Acquire(
        (claim,),
        mode,
        Policy.WRITER,
        client_id=f"ticket:{holder_of(ticket)}" if pending else "",
        may_queue=pending,
        entry_ttl=life,
        claim_window=life,
    )
    drive = session.drive
    reply = await drive.answer(partial(drive.store.step, target, command))
    return isinstance(reply, Granted)


async def _release(
    session: Session, name: tuple[str, ResourceId], ticket: str, mode: Mode
) -> bool:
    """Whether the ticket was the holder, in that mode."""
    session.check()
    target = resource(*name, session.prefix)
    command = Release(check_ticket(ticket), mode)
    drive = session.drive
    reply = await drive.answer(partial(drive.store.step, target, command))
    assert isinstance(reply, Released)
    return reply.held
