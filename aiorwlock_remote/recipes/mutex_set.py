"""Groups of mutexes, each in a sorted set of Redis: take one by its name, or any."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import final

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.mutex_set import ANY_MEMBER, SetMember, check_set_name
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import check_seconds, micros
from aiorwlock_remote.errors import ConfigurationError, NotOwner
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import HeldState, Session
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.set_acquirer import SetAcquirer


@final
class MutexSet:
    """Interchangeable mutexes, as licences: take one by its name, or any free one.

    Creating the object does no I/O. The Redis key is the prefix and the set's name. A
    member of the set is a mutex; its score is the time of its last acquire or update in
    seconds of Unix time, 0 if it is free. Programs that use the published statements
    exclude this one and are excluded by it; all of them must use the same ``lease``.

    A grant's fence is its score in microseconds. Waiters are served in the order of
    their requests, among processes and inside each; a waiter for any mutex gets the one
    that has been free for longest.
    """

    def __init__(
        self,
        session: Session,
        acquirer: SetAcquirer,
        name: str,
        options: Options,
        *,
        keep: bool,
    ) -> None:
        # Without one a score would never be old enough to be taken over.
        if options.lease is None:
            raise ConfigurationError(what="a mutex of a set has a lease")
        self._session = session
        self._acquirer = acquirer
        self._name = name
        self._options = options
        self._lease = micros(options.lease)
        terms = replace(options.terms, keep=keep)
        self._request = AcquireRequest(
            SetMember(name, ANY_MEMBER), Mode.WRITE, Policy.FAIR, terms
        )

    @property
    def name(self) -> str:
        """The set's name, without the prefix that its Redis key has."""
        return self._name

    async def create(self, name: str) -> bool:
        """Add a free mutex to the set; return False if a mutex of that name exists.

        If the call is cancelled, the mutex may have been added.

        Raises:
            BackendError: the store failed, or the set's key holds another type.
        """
        # Before the request: a closed or forked `Locks` has no connection of its own.
        self._session.check()
        members = self._acquirer.members
        return await members.create(check_set_name("mutex", name), self._lease)

    async def remove(self, name: str) -> bool:
        """Remove a mutex, held or not; return False if no mutex of that name exists.

        Its holder gets ``LockLost("forced")`` at the next renewal. If the call is
        cancelled, the mutex may have been removed.

        Raises:
            BackendError: the store failed.
        """
        self._session.check()
        return await self._acquirer.members.remove(check_set_name("mutex", name))

    def acquire(
        self, name: str | None = None, timeout: float | None = None, *, reason: str = ""
    ) -> Acquisition:
        """Return an attempt to get a mutex: ``await`` it, or use it in ``async with``.

        If the caller is cancelled, no grant and no queue entry remain.

        Args:
            name: The mutex; None: any one, whose name is ``held.name``. A mutex that
                does not exist is waited for until a program creates it.
            timeout: Seconds to wait; None: for ever; 0: one attempt.
            reason: Shown to other programs.

        Raises:
            LockTimeout: the mutex was not obtained in time.
            WouldDeadlock: this task already holds the mutex of that name.
            AcquireUncertain: the store did not answer whether it granted the mutex.
            BackendError: the store failed.
            ConfigurationError: an argument is not valid.
            Closed: the ``Locks`` is closed, forked or of another event loop.
        """
        check_seconds("timeout", timeout)
        request = self._request_of(name, timeout, reason)
        return Acquisition(
            self._session, request, self._options, self._acquirer.acquire
        )

    async def try_acquire(self, name: str | None = None) -> Held | None:
        """Try once to get the mutex ``name``, or any one; return None if refused.

        A mutex is refused if it is held, or if other tasks wait for it. Raises what
        ``acquire`` raises, except ``LockTimeout``.
        """
        request = self._request_of(name, 0, "")
        state = await self._session.try_acquire(request, self._options, self._acquirer)
        return None if state is None else Held(state)

    async def update(self, held: Held) -> None:
        """Renew a grant now, in addition to the renewals in the background.

        Raises:
            LockLost: the grant expired, or the mutex was taken over or removed.
            NotOwner: the grant was released, or belongs to another set.
            ConfigurationError: ``held`` is no ``Held``.
            BackendError: the store failed; the grant keeps its old deadline.
        """
        self._state_of(held, "update")
        await held.extend()

    async def release(self, held: Held, *, remove: bool = False) -> bool:
        """Release a grant; return False if the grant was released before.

        The request is sent before anything is awaited; cancelling does not stop it.
        ``remove``: also remove the mutex from the set, in the same step.

        Raises:
            LockLost: the grant had been lost (with ``on_lost="raise"``); nothing was
                changed.
            NotOwner: the grant belongs to another set.
            ConfigurationError: ``held`` is no ``Held``.
            BackendError: the store failed; the release is repeated until the lease
                ends.
        """
        state = self._state_of(held, "release")
        if not remove:
            return await state.release()
        return await state.release(self._release_and_remove)

    async def list(self) -> AsyncGenerator[str, None]:
        """Yield the names of all mutexes, held or not, in no order.

        Raises:
            BackendError: the store failed.
        """
        self._session.check()
        async with aclosing(self._acquirer.members.names()) as names:
            async for name in names:
                yield name

    def _request_of(
        self, name: str | None, timeout: float | None, reason: str
    ) -> AcquireRequest:
        target = ANY_MEMBER if name is None else check_set_name("mutex", name)
        member = SetMember(self._name, target)
        return replace(self._request.once(timeout, reason), resource=member)

    def _release_and_remove(self, lease: Lease) -> Pending[Reply]:
        send = partial(self._acquirer.members.end, lease.ticket)
        retrier = self._session.client.cleanup
        return retrier.retry_if_failed(send(), lease.resource, send, lease.left)

    def _state_of(self, held: Held, action: str) -> HeldState:
        state = state_of(held)
        resource = state.lease.resource
        ours = isinstance(resource, SetMember) and resource.type == self._name
        # The same name in another `Locks` may be another server's set.
        if not ours or state.session is not self._session:
            raise NotOwner(resource=resource.label, action=action)
        return state

    def __repr__(self) -> str:
        return f"<MutexSet {self._name!r}>"
