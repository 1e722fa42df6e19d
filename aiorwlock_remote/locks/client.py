"""``Locks``: an open store, and the factory of all locks in it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar, Unpack, final

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.commands import Forced, ForceRelease
from aiorwlock_remote.core.names import (
    ResourceId,
    encode_type,
    resource_under_prefix,
    semaphore_type,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import Closed, ConfigurationError
from aiorwlock_remote.locks.acquisition import adopt
from aiorwlock_remote.locks.diagnostics import (
    Statistics,
    collect_statistics,
    diagnose,
)
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.info import LockInfo
from aiorwlock_remote.locks.lock import (
    AnyLock,
    Mutex,
    OptionArgs,
    RWLock,
    Semaphore,
    Synchronized,
)
from aiorwlock_remote.locks.multi import Multi
from aiorwlock_remote.locks.options import Options, check_limit, rwlock_options
from aiorwlock_remote.locks.recipe_factories import RecipeFactories
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.locks.ticket_calls import TicketCalls
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Finding

log: logging.Logger = logging.getLogger("aiorwlock_remote.audit")

T = TypeVar("T")


@final
class Locks(TicketCalls, RecipeFactories):
    """The locks of one store, for one process and one event loop; made by ``connect``.

    Leaving ``async with connect(…)``, or ``aclose()``, ends every wait with ``Closed``
    and releases every grant that was not detached. A ``Locks`` that is dropped without
    being closed keeps its connections open, with a ``ResourceWarning``.
    """

    def __init__(self, session: Session, options: Options, where: str) -> None:
        self._where = where
        TicketCalls.__init__(self, session)
        RecipeFactories.__init__(self, session, options)

    def mutex(
        self,
        resource_type: str,
        resource_id: ResourceId,
        **options: Unpack[OptionArgs],
    ) -> Mutex:
        """Return a mutex; no I/O.

        Args:
            resource_type: kind of the resource, such as ``"order"``.
            resource_id: the one resource of that kind, such as 42.
            options: replace the defaults given to ``connect``; see ``OptionArgs``.

        Raises:
            ConfigurationError: a name or an option is not valid.
        """
        target = self._session.resource(resource_type, resource_id)
        chosen = self._options.but(options) if options else self._options
        return Mutex(self._session, target, chosen)

    lock = mutex

    def rwlock(
        self,
        resource_type: str,
        resource_id: ResourceId,
        **options: Unpack[OptionArgs],
    ) -> RWLock:
        """Return a readers-writer lock; no I/O.

        Args:
            resource_type: kind of the resource, such as ``"order"``.
            resource_id: the one resource of that kind, such as 42.
            options: replace the defaults given to ``connect``; see ``OptionArgs``.

        Raises:
            ConfigurationError: a name or an option is not valid; ``fair`` is an option
                of a mutex.
        """
        target = self._session.resource(resource_type, resource_id)
        return RWLock(self._session, target, rwlock_options(self._options, options))

    def semaphore(
        self,
        resource_type: str,
        resource_id: ResourceId,
        limit: int,
        **options: Unpack[OptionArgs],
    ) -> Semaphore:
        """Return a semaphore, which up to ``limit`` tasks hold at a time; no I/O.

        A semaphore and a lock of the same name do not exclude each other.

        Args:
            resource_type: kind of the resource, such as ``"api"``.
            resource_id: the one resource of that kind, such as ``"stripe"``.
            limit: how many permits there are, from 1 to 250, among all processes. If
                processes differ, the least of those that hold or wait counts.
            options: replace the defaults given to ``connect``; see ``OptionArgs``.

        Raises:
            ConfigurationError: a name, the limit or an option is not valid; ``fair``
                and ``policy`` are options of locks.
        """
        target = self._session.semaphore(resource_type, resource_id)
        chosen = rwlock_options(self._options, options, "semaphore")
        return Semaphore(self._session, target, chosen, check_limit(limit))

    def synchronized(
        self,
        resource_type: str,
        template: str,
        *,
        mode: LockModeName = "write",
        timeout: float | None = None,
        reason: str = "",
        **options: Unpack[OptionArgs],
    ) -> Synchronized:
        """Return a decorator of async functions that locks what a call names; no I/O.

        ``@locks.synchronized("order", "{order_id}")`` holds the mutex ``("order",
        order_id)`` during each call of a function with a parameter ``order_id``. Calls
        with the same value wait for each other, on all machines. For a fixed name, use
        a lock itself as the decorator: ``@locks.mutex("job", "x")``.

        Args:
            resource_type: kind of the resource: ``"order"``.
            template: the id, with parameters of the function in braces, or their
                attributes: ``"{shop}/{order.id}"``. Different values make different
                ids.
            mode: ``"read"`` holds the lock together with other readers.
            timeout: seconds to wait in each call; None: for ever; 0: only try.
            reason: shown to tasks that wait for the lock.
            options: replace the defaults given to ``connect``; see ``OptionArgs``.

        A call raises what ``Mutex.acquire`` raises, and the following.

        Raises:
            ConfigurationError: a name or an option is not valid; the function is not
                async, or has no such parameter; a value is not an int, str or UUID.
        """
        encode_type(resource_type, self._session.prefix)
        given: object = mode
        if given not in ("read", "write"):
            raise ConfigurationError(what=f"mode={quoted(mode)} is not read or write")
        chosen = self._options.but(options)

        def lock_of(resource_id: ResourceId) -> AnyLock:
            target = self._session.resource(resource_type, resource_id)
            if mode == "write":
                return Mutex(self._session, target, chosen)
            return RWLock(self._session, target, chosen).reader

        return Synchronized(lock_of, template, timeout, reason)

    def multi(
        self, *locks: AnyLock, timeout: float | None = None, reason: str = ""
    ) -> Multi:
        """Return one attempt to acquire all of several locks, or none; no I/O yet.

        Use the result in ``async with locks.multi(a, b, rw.writer)``, or ``await`` it,
        for a tuple of ``Held`` in the order of the locks. If the caller is cancelled,
        no grant and no queue entry remain.

        Args:
            locks: made by this ``Locks``; each keeps its own options.
            timeout: seconds to wait for all of them together; None: for ever; 0: only
                try.
            reason: shown to tasks that wait for these locks.

        Raises:
            ConfigurationError: no lock was given, two locks have the same resource, or
                a lock is of another ``Locks``. Awaiting or entering the result raises
                what ``Mutex.acquire`` raises.
        """
        return Multi(self._session, locks, timeout, reason)

    async def list(
        self, resource_type: str | None = None
    ) -> AsyncGenerator[LockInfo, None]:
        """Yield each resource that is held or waited for, under this prefix.

        Wrap the generator into ``contextlib.aclosing`` if the loop over it may be left
        early or cancelled.

        Args:
            resource_type: yield only resources of this type; None: of every type.

        Raises:
            BackendError: the store failed.
            ConfigurationError: the type is not valid.
        """
        self._session.check()
        prefix = self._session.prefix
        kinds: list[str | None] = [None]
        if resource_type is not None:
            kinds = [f(resource_type, prefix) for f in (encode_type, semaphore_type)]
        for kind in kinds:
            async with aclosing(self._session.client.store.scan(kind)) as snapshots:
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
        """Yield resources whose holders look abandoned, listing only those holders.

        A holder looks abandoned if its grant never expires, or if its lease ran out and
        no task has requested the resource after that. This includes holders that use
        the published mutex record without this library. If the store's clock was set
        back after the last change of a resource, all its holders are listed. None of
        this proves that a holder is dead. ``force_release`` ends the listed grants.

        Args:
            older_than: seconds since the grant; younger ones do not look abandoned.
            resource_type: yield only resources of this type; None: of every type.
        """
        check_seconds("older_than", older_than, endless=False)
        async with aclosing(self.list(resource_type)) as listed:
            async for shown in listed:
                left = shown.stale(older_than)
                if left is not None:
                    yield left

    async def force_release(self, seen: LockInfo, *, reason: str) -> int:
        """End the grants of the holders in ``seen``, if they still hold the lock.

        Holders that came later are not touched. A holder that is alive gets
        ``LockLost("forced")`` at its next renewal, and its fence is refused as soon as
        the next holder uses its own. If the caller is cancelled, some grants may have
        been ended.

        Args:
            seen: a result of ``list`` or ``stale``.
            reason: written with each holder to the logger ``aiorwlock_remote.audit``.

        Returns:
            The number of grants ended.

        Raises:
            BackendError: the store failed.
            ConfigurationError: ``seen`` is not a ``LockInfo``.
        """
        self._session.check()
        given: object = seen
        if not isinstance(given, LockInfo):
            raise ConfigurationError(
                what=f"force_release() takes a LockInfo, not {quoted(given)}",
                hint="list() and stale() yield them",
            )
        target, ended = seen.target, 0
        for one in seen.holders:
            command = ForceRelease(one.holder, one.fence or 0, seat=one.seat)
            reply = await self._session.client.request(target, command)
            assert isinstance(reply, Forced)
            if reply.done:
                ended += 1
                log_event(
                    log,
                    "forced",
                    resource=target.label,
                    holder=one.holder,
                    fence=one.fence,
                    reason=reason,
                )
        return ended

    def examine(self) -> AsyncGenerator[Finding, None]:
        """Yield findings about the store: its latency, version, settings and rights.

        Nothing is changed. ``rwlock doctor`` prints these findings.

        Raises:
            BackendUnavailable: the store does not answer.
        """
        self._session.check()
        return diagnose(self._session.client)

    def statistics(self) -> Statistics:
        """Return counters and ages of this ``Locks`` since it was opened; no I/O.

        Only this process is counted: ``list`` shows waiters and holders of other
        processes.
        """
        return collect_statistics(self._session)

    async def adopt(self, ticket: str) -> Held:
        """Take over a grant whose ticket ``held.detach()`` returned in any process.

        The store replaces the grant in one step by a new one with this task's name and
        a lease of its own; a writer's has a new fence, so that late writes of the
        former owner are refused. If several tasks adopt one ticket, one of them gets
        the grant. Tasks that wait for the lock go on waiting.

        A ticket that ``rwlock run --export-ticket`` hands to a command is a shared one:
        any number of tasks may adopt it. All of them then hold the same grant as
        ``rwlock run``, with its fence, and the first release ends it for all.

        If the caller is cancelled after the store made the new grant, the lock is
        released; before that, the ticket can still be adopted until its lease ends.

        Raises:
            ConfigurationError: not a ticket made by ``detach``.
            NotOwner: the grant is gone, or another task adopted it.
            AcquireUncertain: it is not known whether the grant was taken over.
            BackendError: the store failed; the new grant, if it was made, is released.
        """
        return await adopt(self._session, self._options, ticket)

    async def aclose(self) -> None:
        """End every wait with ``Closed``, release every grant, close the connection.

        If another task is inside the ``async with`` of a lock, its body is cancelled,
        and the ``async with`` raises ``Closed`` (with ``on_lost="raise"``, the
        default).

        If the caller is cancelled, the releases are carried out all the same. A second
        call does nothing.
        """
        session = self._session
        if session.closed:
            return
        session.check()
        session.closed = True
        # First the waits, so that no grant comes after the releases below; then the
        # requests under way are undone, while there is a connection.
        client = session.client
        for acquirer in list(client.acquirers):
            acquirer.close(Closed())
        session.client.in_flight.close()
        task = session.loop.current_task()
        for grant in session.grants():
            grant.close(task)
        # A loop and not a copy: destructors may append meanwhile.
        while session.dropped:
            lease = session.dropped.popleft()
            if not lease.expired():
                client.release(lease).log_failure()
        try:
            for occupancy in self._occupancy.values():
                await occupancy.aclose()
        finally:
            # Also after an error or a cancellation above: threads and connections
            # would stay.
            await client.aclose()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        session = getattr(self, "_session", None)
        if session is not None and not (session.closed or session.forked):
            warn(f"{self!r} was never closed", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<Locks {self._where}{' closed' if self._session.closed else ''}>"

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        # In a forked child `aclose` raises `Closed`, in place of the block's own error.
        if exc_info[1] is not None and self._session.forked:
            return
        await self.aclose()


def session_of(locks: Locks) -> Session:
    """Return the internal ``Session`` of a ``Locks``, for the test tools."""
    return locks._session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


def default_lease(locks: Locks) -> float | None:
    """Return the lease that ``connect`` set for all locks; None: they never end."""
    return locks._options.lease  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file
