"""``Locks``: the connection to a store, and everything made from it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TypeVar, Unpack, final

from aiorwlock_remote.core.commands import Forced, ForceRelease
from aiorwlock_remote.core.names import (
    Resource,
    ResourceId,
    encode_type,
    resource,
    resource_under_prefix,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import Closed, ConfigurationError, NotOwner
from aiorwlock_remote.locks import tickets
from aiorwlock_remote.locks.diagnostics import closed, diagnose
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.info import Holder, LockInfo
from aiorwlock_remote.locks.lock import AnyLock, Mutex, RWLock
from aiorwlock_remote.locks.multi import Multi
from aiorwlock_remote.locks.option_args import OptionArgs
from aiorwlock_remote.locks.options import Options, rwlock_options
from aiorwlock_remote.locks.recipe_factories import RecipeFactories
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.locks.ticket_calls import TicketCalls
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Finding
from aiorwlock_remote.runtime import conversion
from aiorwlock_remote.runtime.request import AcquireRequest

log: logging.Logger = logging.getLogger("aiorwlock_remote.audit")

T = TypeVar("T")


@final
class Locks(TicketCalls, RecipeFactories):
    """Locks of one store. One per process and event loop; got from ``connect``.

    Leaving ``async with connect(…)``, or ``aclose()``, ends every wait with ``Closed``
    and releases every grant that was not detached. One that is dropped
    unclosed keeps its connections: ``ResourceWarning``.
    """

    def __init__(self, session: Session, options: Options, where: str) -> None:
        """Made by ``connect``, not by users; ``where`` shows no password."""
        self._where = where
        TicketCalls.__init__(self, session)
        RecipeFactories.__init__(self, session, options)

    def mutex(
        self,
        resource_type: str,
        resource_id: ResourceId,
        **options: Unpack[OptionArgs],
    ) -> Mutex:
        """A mutex; no I/O.

        Raises:
            ConfigurationError: a name or an option that cannot be used.
        """
        target = resource(resource_type, resource_id, self._session.prefix)
        return Mutex(self._session, target, self._options.but(options))

    lock = mutex

    def rwlock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        **options: Unpack[OptionArgs],
    ) -> RWLock:
        """A readers-writer lock; no I/O.

        Raises:
            ConfigurationError: a name or an option that cannot be used, as ``fair``,
                which is a mutex's.
        """
        target = resource(resource_type, resource_id, self._session.prefix)
        return RWLock(self._session, target, rwlock_options(self._options, options))

    def multi(
        self, *locks: AnyLock, timeout: float | None = None, reason: str = ""
    ) -> Multi:
        """Several locks, all or none: ``async with locks.multi(a, b, rw.writer)``.

        ``await`` it, or enter it, for a tuple of ``Held`` in the order of the locks,
        each of which keeps its own options. ``timeout``: seconds to wait for all of
        them; None for ever, 0 only tries. Cancelled, it leaves nothing behind.

        Raises:
            ConfigurationError: none, one resource twice, or no lock of this ``Locks``;
                at once. What ``acquire`` raises, when awaited or entered.
        """
        return Multi(self._session, locks, timeout, reason)

    async def list(
        self, resource_type: str | None = None
    ) -> AsyncGenerator[LockInfo, None]:
        """Every resource that is held or waited for, if its type has our prefix.

        Whoever may leave it early, or be cancelled in it, wraps it into
        ``contextlib.aclosing``.

        Raises:
            BackendError: the store failed.
            ConfigurationError: no such type can be.
        """
        self._session.check()
        prefix, kind = self._session.prefix, None
        if resource_type is not None:
            kind = encode_type(resource_type, prefix)
        async with closed(self._session.drive.store.scan(kind)) as snapshots:
            async for snapshot in snapshots:
                found = resource_under_prefix(snapshot.resource, prefix)
                if found is None:
                    continue
                shown = self._session.shown(replace(snapshot, resource=found))
                if shown.holders or shown.queue:
                    yield shown

    async def stale(
        self, older_than: float = 0.0, resource_type: str | None = None
    ) -> AsyncGenerator[LockInfo, None]:
        """Resources with holders that look left behind, only those holders listed.

        Grants that never expire, leases that ran out with nobody asking since, and
        foreign programs' records, at least ``older_than`` seconds old; and those that
        nobody has renewed since the store's clock was set back. Nothing here proves
        that the holder is dead.
        """
        check_seconds("older_than", older_than, endless=False)
        async with aclosing(self.list(resource_type)) as listed:
            async for shown in listed:
                left = shown.stale(older_than)
                if left is not None:
                    yield left

    async def force_release(self, seen: LockInfo, *, reason: str) -> int:
        """Break the holders listed in ``seen``, if they are still the ones holding.

        Compare-and-delete: who came since is left alone. Cancelled, it may have broken
        some. Written to the log
        ``aiorwlock_remote.audit`` with ``reason``. A holder that is alive is told
        (``LockLost("forced")``) at its next renewal, and its fence is refused as soon
        as the next holder uses its own. Gives the number of holders broken.

        Raises:
            BackendError: the store failed.
            ConfigurationError: ``seen`` is not what ``list`` and ``stale`` give.
        """
        self._session.check()
        given: object = seen
        if not isinstance(given, LockInfo):
            raise ConfigurationError(
                what=f"{quoted(given)} cannot be broken",
                hint="a Doorman, as list() and stale() give them",
            )
        target = seen.target
        broken = 0
        for holder in seen.holders:
            if await self._break(target, holder):
                broken += 1
                log_event(
                    log,
                    "forced",
                    resource=target.label,
                    holder=holder.holder,
                    fence=holder.fence,
                    reason=reason,
                )
        return broken

    def examine(self) -> AsyncIterator[Finding]:
        """What there is to know about the store: latency, version, settings, rights.

        Changes nothing. What ``rwlock doctor`` prints.

        Raises:
            BackendUnavailable: the store does not answer.
        """
        self._session.check()
        return diagnose(self._session.drive.store, self._session.host.clock)

    async def adopt(self, ticket: str) -> Held:
        """Take over a grant that ``held.detach()`` gave away, here or elsewhere.

        It becomes a new grant, in one step: with this task's name and a lease of its
        own, and a writer's with a new fence, so that what the giver still sends is
        refused. Of several that adopt one ticket, one gets it. Whoever waits for the
        lock goes on waiting.

        The ticket that ``rwlock run --export-ticket`` hands to a command is a shared
        one: adopted, by as many as want to, it is the very grant of ``rwlock run``,
        with its fence, and the first release ends it for all.

        Cancelled, the lock is released if it had been taken over; if not, the ticket
        can still be adopted, until its lease ends.

        Raises:
            ConfigurationError: not a ticket made by ``detach``.
            NotOwner: the grant is gone, or somebody else adopted it.
            AcquireUncertain: the store never said whether it was taken over.
            BackendError: the store failed; then as if cancelled.
        """
        session = self._session
        session.check()
        passed = tickets.read(ticket)
        target = (
            resource_under_prefix(passed.resource, session.prefix) or passed.resource
        )
        options = self._options.but(
            {"lease": passed.lease, "lock_delay": passed.lock_delay}
        )
        request = AcquireRequest(
            target,
            passed.mode,
            options.mutex_policy(),
            options.terms,
            reason=passed.reason,
            lock_delay=passed.lock_delay,
        )
        obtain = conversion.share if passed.shared else conversion.adopt
        with session.asked(request) as followers:
            lease = await obtain(session.drive, passed.ticket, request)
            if lease is None:
                raise NotOwner(resource=target.label, action="adopt")
            session.check()  # closed meanwhile
        grip = HeldState(session, lease, options, followers, owned_by_task=False)
        grip.shared = passed.shared
        return Held(grip)

    async def aclose(self) -> None:
        """End every wait with ``Closed``, release every grant, close the connection.

        Bodies of ``async with`` that other tasks run under these grants are cancelled,
        and leave with ``Closed``, unless a loss would not cancel them either.

        What is sent is carried out even if this is cancelled. A second call does
        nothing.
        """
        session = self._session
        if session.closed:
            return
        session.check()
        session.closed = True
        session.doors.close(Closed())
        session.drive.closing.close()
        self._pools.close(Closed())
        if self._rows is not None:
            self._rows.close()
        task = session.host.current_task()
        for grant in session.grants():
            grant.close(task)
        while session.dropped:  # destructors may append
            lease = session.dropped.popleft()
            if not lease.expired():
                session.drive.release(lease).log_failure()
        try:
            if self._rows is not None:
                await self._rows.wait_closed()
            for occupancies in self._occupancies.values():
                await occupancies.aclose()
        finally:
            await session.drive.aclose()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        session = getattr(self, "_session", None)
        if session is not None and not (session.closed or session.forked):
            warn(f"{self!r} was never closed", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<Locks {self._where}{' closed' if self._session.closed else ''}>"

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and self._session.forked:
            return  # it is to be seen, not that these locks are the parent's
        await self.aclose()

    async def _break(self, target: Resource, holder: Holder) -> bool:
        command = ForceRelease(holder.holder, holder.fence or 0, seat=holder.seat)
        drive = self._session.drive
        reply = await drive.answer(partial(drive.store.step, target, command))
        assert isinstance(reply, Forced)
        return reply.done


def session_of(locks: Locks) -> Session:
    """The session behind them, for the tools that test."""
    return locks._session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file
