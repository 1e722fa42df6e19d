"""S1: many mutexes in one sorted set of Redis; take one by its name, or any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import final
from weakref import WeakValueDictionary

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.mutex_set import ANY_MEMBER, SetMember, check_set_name
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import check_seconds, micros
from aiorwlock_remote.errors import ConfigurationError, NotOwner
from aiorwlock_remote.locks.acquisition import Acquisition, try_acquire_grant
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports.recipes import SupportsMutexSets
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.set_acquirer import SetAcquirer


@final
class MutexSet:
    """A set of mutexes: proxies, accounts, licences. Made without I/O.

    The key is the prefix and the set's name; member = mutex, score = seconds of its
    last acquire or update, 0 = free. Programs that use the published statements exclude
    ours and are excluded; all of them must count with the same ``lease``.

    A grant's fence is its score in microseconds. Waiters are served first come first
    served among the processes and inside each; who waits for any is given the one that
    was free for longest.
    """

    def __init__(
        self,
        session: Session,
        pool: SetAcquirer,
        name: str,
        options: Options,
        *,
        keep: bool,
    ) -> None:
        """Made by ``Locks.mutex_set``, not by users."""
        if options.lease is None:
            raise ConfigurationError(what="a mutex of a set has a lease")
        self._session = session
        self._pool = pool
        self._name = name
        self._options = options
        self._lease = micros(options.lease)
        terms = replace(options.terms, keep=keep)
        self._request = AcquireRequest(
            SetMember(name, ANY_MEMBER), Mode.WRITE, Policy.FAIR, terms
        )

    @property
    def name(self) -> str:
        """The set's name."""
        return self._name

    async def create(self, name: str) -> bool:
        """Add a mutex, free; False if there is one of that name.

        Cancelled, it may have been added.

        Raises:
            BackendError: the store failed, or something else has the set's key.
        """
        self._session.check()
        return await self._pool.members.create(
            check_set_name("mutex", name), self._lease
        )

    async def remove(self, name: str) -> bool:
        """Remove a mutex, held or not; False if there is none.

        Who holds it learns it at the next renewal (``LockLost("forced")``). Cancelled,
        it may have been removed.

        Raises:
            BackendError: the store failed.
        """
        self._session.check()
        return await self._pool.members.remove(check_set_name("mutex", name))

    def acquire(
        self, name: str | None = None, timeout: float | None = None, *, reason: str = ""
    ) -> Acquisition:
        """Wait for this mutex, or for any: ``await`` it, or use it in ``async with``.

        ``held.name`` tells which. ``timeout``: seconds to wait; None for ever, 0 only
        tries. A mutex that is not in the set is waited for until somebody creates it.
        Cancelling leaves nothing behind: no grant, no place.

        Raises (when awaited or entered):
            LockTimeout: not obtained in time.
            WouldDeadlock: this task holds the mutex of that name already.
            AcquireUncertain: the store never said whether it granted.
            BackendError: the store failed.
            ConfigurationError: a name or a number that cannot be used.
            Closed: the ``Locks`` is closed, forked or of another loop.
        """
        check_seconds("timeout", timeout)
        request = self._request_of(name, timeout, reason)
        return Acquisition(self._session, request, self._options, self._pool.acquire)

    async def try_acquire(self, name: str | None = None) -> Held | None:
        """This mutex, or any, if it is free and nobody waits for it; else None.

        Raises what ``acquire`` raises, but for ``LockTimeout``.
        """
        request = self._request_of(name, 0, "")
        return await try_acquire_grant(
            self._session, request, self._options, self._pool
        )

    async def update(self, held: Held) -> None:
        """Renew by hand, as ``held.extend()``; the keeper does it by itself.

        Raises:
            LockLost: it expired, was taken over or removed.
            NotOwner: released, or of another set.
            ConfigurationError: no ``Held``.
            BackendError: the store failed; the grant lives as long as it did before.
        """
        self._mine(held, "update")
        await held.extend()

    async def release(self, held: Held, *, remove: bool = False) -> bool:
        """Give it back, and with ``remove`` take it out of the set in the same step.

        True if it was held until now, False if released before. The request is sent
        before anything is awaited: cancelling does not stop it.

        Raises:
            LockLost: it had been lost (with ``on_lost="raise"``); nothing was changed.
            NotOwner: of another set.
            ConfigurationError: no ``Held``.
            BackendError: the store failed; it is asked again until the lease ends.
        """
        grip = self._mine(held, "release")
        if not remove:
            return await grip.release()
        return await grip.release(self._end)

    async def list(self) -> AsyncIterator[str]:
        """The names of all mutexes, held or not, in no order.

        Raises:
            BackendError: the store failed.
        """
        self._session.check()
        async for name in self._pool.members.names():
            yield name

    def _request_of(
        self, name: str | None, timeout: float | None, reason: str
    ) -> AcquireRequest:
        target = ANY_MEMBER if name is None else check_set_name("mutex", name)
        member = SetMember(self._name, target)
        return replace(self._request, resource=member, timeout=timeout, reason=reason)

    def _end(self, lease: Lease) -> Pending[Reply]:
        again = partial(self._pool.members.end, lease.ticket)
        cleanup = self._session.runtime.cleanup
        return cleanup.retry_if_failed(again(), lease.resource, again, lease.left)

    def _mine(self, held: Held, action: str) -> HeldState:
        grip = state_of(held)
        resource = grip.lease.resource
        ours = isinstance(resource, SetMember) and resource.type == self._name
        if not ours or grip.session is not self._session:
            raise NotOwner(resource=resource.label, action=action)
        return grip

    def __repr__(self) -> str:
        return f"<MutexSet {self._name!r}>"


class SetAcquirers:
    """The pools of one ``Locks``: one for each set, however often it is asked for.

    A pool lasts as long as somebody has a ``MutexSet`` of it, or waits there.
    """

    def __init__(self, session: Session) -> None:
        """None yet."""
        self._session = session
        self._pools: WeakValueDictionary[tuple[str, float], SetAcquirer]
        self._pools = WeakValueDictionary()

    def pool(
        self, store: SupportsMutexSets, name: str, look_every: float
    ) -> SetAcquirer:
        """The pool of that set."""
        pool = self._pools.get((name, look_every))
        if pool is None:
            members = partial(store.members, name)
            pool = SetAcquirer(name, self._session.client, members, look_every)
            self._pools[name, look_every] = pool
        return pool
