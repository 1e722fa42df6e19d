"""``Session``, the grants of one ``Locks``, and ``HeldState``, one of these grants."""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Released, Reply
from aiorwlock_remote.core.mutex_set import SetMember
from aiorwlock_remote.core.names import (
    Resource,
    ResourceId,
    cached_resource,
    resource,
    semaphore,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    Closed,
    ConfigurationError,
    LockLost,
    NotOwner,
    WouldDeadlock,
)
from aiorwlock_remote.locks.info import LockInfo, lock_info
from aiorwlock_remote.locks.observers import (
    NO_OBSERVERS,
    AttemptObservers,
    GrantEnd,
    Observer,
    begin_attempt,
)
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.logs import guarded, log_event
from aiorwlock_remote.ports import Snapshot, StoreBase
from aiorwlock_remote.runtime.acquirer import LockAcquirer, Obtain
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.lease import (
    DETACHED,
    HELD,
    LOST,
    RELEASED,
    AcquireRequest,
    Lease,
    LeaseState,
)
from aiorwlock_remote.runtime.store_client import StoreClient

log: logging.Logger = logging.getLogger("aiorwlock_remote.held")
store_log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()

Mover = Callable[[AcquireRequest], Awaitable[Lease | None]]
"""Asks the store for the grant in another mode: ``conversion.upgrade``, ``downgrade``.
Returns None if that was not possible."""
TaskRef = weakref.ref[Any]
"""A reference to a task. That of a task that has ended equals no other, so that a new
task at the same address is not taken for the owner."""
Sender = Callable[[Lease], Pending[Reply]]
"""Sends the release of a grant and returns the reply that will come."""


class Session:
    """Internal state of one ``Locks``: store client, grants and their owners."""

    def __init__(self, client: StoreClient, observers: Sequence[Observer] = ()) -> None:
        self.client = client
        self.loop: TaskEventLoop = client.loop
        self.acquirer: LockAcquirer = LockAcquirer(client)
        self.closed: bool = False
        self.prefix: str = client.prefix
        # Grants whose block was left before their transaction ended, each with a
        # function that looks whether it has.
        self.outlasting: dict[Lease, Callable[[], Awaitable[object]]] = {}
        # Grants whose ``Held`` was dropped. A destructor may run in any thread, amid
        # anything, and so only appends here; closing releases them.
        self.dropped: deque[Lease] = deque()
        self._observers = observers
        self._pid = os.getpid()
        self._grants: dict[Lease, HeldState] = {}
        self._task_ended = self.loop.finished
        # Bound methods, made once and not for each grant.
        self._on_loss = self._loss_found
        self._clock_set_back = False
        self._mine: dict[tuple[TaskRef, Resource], Lease] = {}
        """What each task holds."""
        _sessions.add(self)

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that called ``connect``."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ``Closed`` after ``aclose``, after a fork, or in another event loop."""
        # One test for the usual case: this runs in each acquire and each release.
        if os.getpid() == self._pid and not self.closed and self.loop.here():
            return
        if self.forked:
            raise Closed(reason="forked")
        raise Closed(reason="closed" if self.closed else "other loop")

    def task(self) -> TaskRef:
        """Return the running task."""
        return weakref.ref(self.loop.current_task())

    def resource(self, resource_type: str, resource_id: ResourceId) -> Resource:
        """Return the resource of this name, its type preceded by the prefix."""
        try:
            return cached_resource(resource_type, resource_id, self.prefix)
        # An id that is not hashable is refused with a clear error, or is of a strange
        # subclass of an allowed type.
        except TypeError:
            return resource(resource_type, resource_id, self.prefix)

    def semaphore(self, resource_type: str, resource_id: ResourceId) -> Resource:
        """Return the resource of a semaphore, its type preceded by the prefix."""
        return semaphore(resource_type, resource_id, self.prefix)

    def shown(self, snapshot: Snapshot) -> LockInfo:
        """Convert a snapshot to a ``LockInfo``. If the snapshot shows that the store's
        clock was set back, log that once.
        """
        seen = lock_info(snapshot)
        if seen.clock_set_back and not self._clock_set_back:
            self._clock_set_back = True
            log_event(
                store_log,
                "store_clock_set_back",
                resource=snapshot.resource.label,
                seconds=seen.clock_set_back,
            )
        return seen

    def asked(self, request: AcquireRequest) -> AttemptObservers:
        """Show a new attempt to the observers; return those that want its outcome."""
        if not self._observers:
            return NO_OBSERVERS
        return begin_attempt(self._observers, request)

    async def acquire(
        self,
        request: AcquireRequest,
        options: Options,
        obtain: Obtain | None = None,
        *,
        owned_by_task: bool,
    ) -> HeldState:
        """Wait for a grant; return its state, to be given to a new ``Held``, which has
        the grant renewed. If the caller is cancelled, no grant and no queue entry
        remain.

        Args:
            request: which lock.
            options: those of the lock.
            obtain: waits for the grant; None: as ``LockAcquirer.acquire`` does.
            owned_by_task: whether the grant lives as long as the running task, or as
                the ``Held``.

        Raises:
            WouldDeadlock: the running task holds the resource already.
            LockError: what ``obtain`` raises.
        """
        followers = self.asked(request)
        try:
            task = await self.may_ask(request.resource)
            lease = await (obtain or self.acquirer.acquire)(request)
        except BaseException as exc:
            followers.failed(exc)
            raise
        return HeldState(
            self, lease, options, followers, task, owned_by_task=owned_by_task
        )

    async def try_acquire(
        self,
        request: AcquireRequest,
        options: Options,
        acquirer: LockAcquirer | None = None,
    ) -> HeldState | None:
        """Return the state of a grant, as ``acquire`` does, if the lock is free; else
        None. ``acquirer`` asks for it; None: that of all locks but mutex sets.
        """
        with self.asked(request) as followers:
            task = await self.may_ask(request.resource)
            lease = await (acquirer or self.acquirer).try_acquire(request)
        if lease is None:
            followers.failed(None)
            return None
        return HeldState(self, lease, options, followers, task, owned_by_task=False)

    async def may_ask(self, resource: Resource) -> TaskRef:
        """Raise ``WouldDeadlock`` if the running task holds the resource, in any mode;
        else return that task.

        If the task left an ``in_transaction`` block of this resource, check first
        whether that transaction has ended, and if so release its lock. Raise ``Closed``
        as ``check``, and ``BackendError`` if the store failed.
        """
        self.check()
        task = self.task()
        mine = self._mine.get((task, resource))
        if mine is not None:
            await self._has_ended(mine)
        return task

    async def _has_ended(self, mine: Lease) -> None:
        look = self.outlasting.get(mine)
        if look is not None:
            await look()
            self.check()
        # A grant that has ended is not in the way, though ``forget`` comes later.
        if mine.expired() or mine.state is not HELD:
            return  # the callback of the loss has not run yet
        held_mode = str(mine.mode)
        raise WouldDeadlock(resource=mine.resource.label, held_mode=held_mode)

    def admit(self, grant: HeldState, face: object) -> None:
        """Register a new grant, which the user has as ``face``: from now on it is
        renewed, and its loss is handled. The task that asked becomes its owner if
        ``grant.owned_by_task``, else ``face``.
        """
        if self.dropped:
            self._check_dropped()
        lease, task = grant.lease, grant.task
        grant.face = weakref.ref(face)
        if grant.owned_by_task:
            lease.owner, lease.owner_gone = task, self._task_ended
        else:
            lease.owner, lease.owner_gone = grant.face, _is_dead
        lease.on_loss = self._on_loss
        self._mine[task, lease.resource] = lease
        self._grants[lease] = grant
        self.client.keeper.add(lease)
        if grant.followers is not NO_OBSERVERS:
            grant.followers.obtained(lease.resource, lease.fence)

    def forget(self, lease: Lease) -> None:
        """Unregister a grant that ended: its task may ask for the resource again."""
        grant = self._grants.pop(lease, None)
        if grant is not None:
            mine = grant.task, lease.resource
            if self._mine.get(mine) is lease:
                del self._mine[mine]

    def grants(self) -> list[HeldState]:
        return list(self._grants.values())

    def leases(self) -> list[Lease]:
        return list(self._grants)

    def _check_dropped(self) -> None:
        # Two for each new grant, so that those that have ended do not pile up
        # (test_ended_objects_do_not_pile_up).
        for _ in range(min(2, len(self.dropped))):
            lease = self.dropped.popleft()  # a destructor only appends, in any thread
            if not lease.expired():
                self.dropped.append(lease)

    def _loss_found(self, lease: Lease) -> None:
        # In the thread that found the loss, maybe the keeper's.
        self.loop.call_soon(self._lost, lease)

    def _lost(self, lease: Lease) -> None:
        grant = self._grants.get(lease)
        if grant is not None:
            grant.on_lost()


def sessions_of(stores: Collection[StoreBase]) -> list[Session]:
    """Return the sessions of this process that use one of ``stores``."""
    return [one for one in list(_sessions) if one.client.store in stores]


def _is_dead(face: weakref.ref[Any]) -> bool:
    return face() is None


class ReleasesBody(Protocol):
    """Function that releases a grant when the body it protected ends."""

    def __call__(self, *, quietly: bool) -> Awaitable[object]:
        """Release the grant. Raise ``LockLost`` if it was lost, or the error of a
        failed release; but nothing if ``quietly``. An error may be raised by the call
        or by the ``await``.
        """


async def end_body(
    scope: anyio.CancelScope | None, release: ReleasesBody, *exc_info: *ExcInfo
) -> bool:
    """Leave the cancel scope of a body that a grant protected, and release the grant.

    Of several errors the caller gets the first of these (tests/runtime/test_loss.py):

    1. the body's own error, or a cancellation from outside;
    2. the loss of the grant, in place of the cancellation that it caused;
    3. the error of the release.

    ``scope`` was entered before the body, and a loss cancels it; None: there is none,
    as no loss is noticed before the release. ``release`` raises the loss or its own
    error, unless called with ``quietly=True``. ``exc_info``: that of ``__aexit__``.

    Return True if the body ended only because ``scope`` was cancelled, and ``release``
    raised nothing: the caller has to raise an error.
    """
    exc = exc_info[1]
    try:
        swallowed = scope is not None and scope.__exit__(*exc_info)
    except BaseException:  # the rest of an exception group without our cancellation
        await release(quietly=True)
        raise
    await release(quietly=exc is not None and not swallowed)
    return exc is not None and bool(swallowed)


class _MoveChain:
    newest: HeldState


class HeldState:
    """One grant, its owner, and what happens when it ends.

    How a grant ends, and whether a release is sent to the store:

    - sent, and the reply awaited: ``release``; ``exit`` of an ``async with``
    - sent, and the reply not awaited: ``give_back``; ``close`` with the ``Locks``;
      ``on_lost`` after ``max_hold`` or ``max_stall``
    - not sent: ``detach`` for another holder; ``abandon`` when the ``Held`` is dropped;
      ``on_lost`` otherwise
    - moved to another mode: ``newest`` is the state of the grant that replaced it

    Attributes:
        task: the one that asked for the grant.
        owned_by_task: the owner is that task, as in ``async with``; otherwise it is the
            user's ``Held`` (``face``: a weak reference).
        shared: the grant was adopted with a shared ticket, so that the process which
            made the ticket holds it as well.
        wrapped: a synchronous grant has the ``Held``, and warns if it is dropped. Both
            may be garbage of one cycle, whose destructors come in any order
            (test_a_grant_in_garbage_warns_once).
    """

    # Of the class until they change: most grants only are acquired and released.
    face: weakref.ref[object] | None = None
    shared: bool = False
    wrapped: bool = False
    # Those that a loss cancels, and that of ``enter``, which ``exit`` leaves.
    _bodies: tuple[anyio.CancelScope, ...] = ()
    _scope: anyio.CancelScope | None = None
    _bodies_lost = False
    _closed_under = False
    _given_back = False
    _chain: _MoveChain | None = None

    def __init__(
        self,
        session: Session,
        lease: Lease,
        options: Options,
        followers: AttemptObservers,
        task: TaskRef,
        *,
        owned_by_task: bool,
    ) -> None:
        self.session = session
        self.task = task
        self.lease = lease
        self.options = options
        self.owned_by_task = owned_by_task
        self.followers = followers

    @property
    def newest(self) -> HeldState:
        """This state, or that of the newest grant into which this one was moved."""
        return self if self._chain is None else self._chain.newest

    def check(self) -> None:
        """Raise ``LockLost``, ``NotOwner`` or ``Closed`` unless the grant is held."""
        if self._closed_under or self.lease.expired():
            raise self.error()
        if self.lease.state is not HELD:
            raise NotOwner(resource=self.lease.resource.label, action="use")

    def error(self) -> LockLost | Closed:
        """Return the error of a lost grant, or ``Closed`` if ``close`` ended it."""
        if self._closed_under:
            return Closed()
        lease = self.lease
        return LockLost(
            reason=lease.reason or "expired",
            resource=lease.resource.label,
            mode=str(lease.mode),
            fence=lease.fence,
        )

    def require_no_set(self, action: str) -> None:
        """Raise ``ConfigurationError`` if the grant is that of a mutex of a
        ``MutexSet``. ``action``: what such a mutex does not have, for the error.
        """
        resource = self.lease.resource
        if isinstance(resource, SetMember):
            raise ConfigurationError(
                what=f"{resource.label} is a mutex of a set: no {action}"
            )

    def watch(self, body: anyio.CancelScope) -> None:
        """Cancel ``body`` when the grant is lost; at once if it is lost already."""
        self._bodies = *self._bodies, body
        if self._bodies_lost:
            body.cancel()

    def unwatch(self, body: anyio.CancelScope) -> None:
        """Stop watching ``body``, because it was left."""
        self._bodies = tuple([one for one in self._bodies if one is not body])

    def enter(self) -> None:
        """Enter a cancel scope; with ``on_lost="raise"``, a loss cancels it."""
        self._scope = scope = self.session.loop.new_scope()
        scope.__enter__()
        if self.options.on_lost == "raise":
            self.watch(scope)

    async def exit(
        self,
        *exc_info: *ExcInfo,
        keep: bool = False,
    ) -> None:
        """Leave the cancel scope of ``enter`` and release the newest grant. An
        error of the body has precedence over a loss, a loss over a failed release.

        ``keep``: release it only if it is lost; the caller calls ``leave`` later.
        """
        scope, session = self._scope, self.session
        assert scope is not None
        self._scope = None
        if session.forked:
            # The grant is the parent's. asyncio has no running loop in a child.
            with suppress(RuntimeError):
                scope.__exit__(*exc_info)
            if exc_info[1] is None:
                session.check()
            return
        grant = self.newest
        grant.unwatch(scope)
        leave = grant.leave_if_lost if keep else grant.leave
        swallowed = await end_body(scope, leave, *exc_info)
        # Never True, and typed so: else checkers see a missing `return` in each body.
        assert not swallowed, "a lost grant raised when it was released"

    async def release(self, send: Sender | None = None) -> bool:
        lease, client = self.lease, self.session.client
        if self.newest is not self or lease.state is DETACHED:
            raise NotOwner(resource=lease.resource.label, action="release")
        if lease.state is RELEASED:
            return False
        self.session.check()
        if lease.expired():
            self.give_back()
        elif self._end(RELEASED):
            # From here on the grant is released, whatever becomes of this call: the
            # request is on its way before the first await.
            how: GrantEnd = "released"
            try:
                released = (send or client.release)(lease)
                try:
                    reply = await released
                except BackendUnavailable:  # it may be repeated in the background
                    reply = await client.cleanup.outcome(released)
                assert isinstance(reply, Released)
                if reply.held:
                    return True
                how = lease.reason = reply.reason
            finally:
                if self.followers is not NO_OBSERVERS:
                    self.followers.ended(how)
        if self.options.on_lost == "raise":
            raise self.error()
        return False

    def give_back(self) -> None:
        """Send the release without waiting for the reply.

        Does nothing for a detached grant or in a forked child process. A lost grant is
        released, too: as this process counts a grant as lost before its lease ends, the
        store may still count it as held.
        """
        if self.session.forked:
            return
        lost = self.lease.expired()
        if self._given_back:  # by ``on_lost``: a grant that was held for too long
            return
        if lost or self._end(RELEASED):
            self.session.forget(self.lease)
            self.session.client.release(self.lease).log_failure()
            self.followers.ended(self.lease.reason or "released")

    def close(self, task: object) -> None:
        """Release the grant because ``task`` closes the ``Locks``. If another task is
        inside an ``async with`` of the grant, its body is cancelled, as nothing
        protects it any more. The body of ``task`` itself is not cancelled.
        """
        lease = self.lease
        mine = lease.owner is not None and lease.owner() is task
        self._closed_under = not mine and not lease.expired()
        self.give_back()
        if self._closed_under:
            self._cancel_bodies()

    def detach(self) -> None:
        """End the grant in this process; the store keeps it for the adopting task."""
        if self._end(DETACHED):
            self.followers.ended("detached")

    async def move(self, mode: Mode, mover: Mover) -> HeldState | None:
        """Downgrade or upgrade the grant to ``mode``; return the new grant's state.

        Return None if the store refused and the old grant is still held. Raise
        ``LockLost``, ``NotOwner`` or ``Closed`` if the grant is not held, or ended
        meanwhile. ``await mover(request)`` asks the store and returns the new lease.
        """
        self.session.check()
        self.check()
        self.require_no_set("readers")
        if self.lease.mode is mode:
            label = self.lease.resource.label
            raise ConfigurationError(what=f"{label} is held for {mode} already")
        if self.lease.mode is Mode.PERMIT:
            raise ConfigurationError(
                what=f"{self.lease.resource.label} is a semaphore",
                hint="only a lock has readers and a writer",
            )
        request = AcquireRequest(
            resource=self.lease.resource,
            mode=mode,
            policy=Policy.FAIR,
            terms=self.options.terms,
            reason=self.lease.who.reason,
            lock_delay=self.options.lock_delay,
        )
        with self.session.asked(request) as followers:
            try:
                lease = await mover(request)
            except BackendError:
                self.session.check()  # if closed meanwhile, that is the reason
                raise
            finally:
                # The grant may have ended without this task knowing: lost, or released
                # by another task while the request was under way.
                if self.lease.state is not HELD:
                    self.session.forget(self.lease)
                    self.followers.ended(self.lease.reason or "moved")
        if lease is None:
            followers.failed(None)
            if self.lease.expired():
                raise self.error()
            self.session.check()
            self.check()
            return None
        new = HeldState(
            self.session,
            lease,
            self.options,
            followers,
            self.session.task(),
            owned_by_task=self.owned_by_task,
        )
        # A chain, not a reference to the next: a grant that is moved often would keep
        # all its predecessors (test_only_the_first_and_the_newest_grant_stay).
        self._chain = new._chain = self._chain or _MoveChain()
        self._chain.newest = new
        bodies, self._bodies = self._bodies, ()
        for body in bodies:
            new.watch(body)
        return new

    def abandon(self) -> None:
        """Stop the renewals, as the user's ``Held`` was dropped. Called in any thread.
        The grant ends with its lease, or when the ``Locks`` is closed.
        """
        self.lease.owner_gone = _always
        self.session.forget(self.lease)
        if self.lease.state is HELD:
            self.session.dropped.append(self.lease)
        if self.followers is not NO_OBSERVERS:
            # A destructor may run in any thread, amid anything: observers are called
            # in the loop.
            ended, how = self.followers.ended, self.lease.reason or "dropped"
            self.session.loop.call_soon(ended, how)

    def keep_owner(self, old: HeldState) -> None:
        """After an upgrade or downgrade: make the task that owned ``old``, the state of
        the replaced grant, the owner of this one. A ``Held`` is not taken over.
        """
        if self.owned_by_task:
            before = old.lease
            self.lease.owner, self.lease.owner_gone = before.owner, before.owner_gone

    def on_lost(self) -> None:
        """Handle a loss in the loop's thread: cancel bodies, call the user's callback.
        A grant lost by ``max_hold`` or ``max_stall`` is released in the store, unless
        it was adopted with a shared ticket and others still hold it.
        """
        lease = self.lease
        self.session.forget(lease)
        self._cancel_bodies()  # first: observers and ``on_lost`` may take their time
        if lease.reason == "stalled" and not self.shared:
            # The store would keep it for a lease longer, or for ever without one. Here
            # and not in the keeper's thread: while the loop hangs, what hangs it may
            # write still, as `check` allowed it; until its deadline it has been
            # promised to be alone (``test_a_loop_that_hangs_keeps_its_lease``).
            self._given_back = True
            self.session.client.release(lease).log_failure()
        on_lost = self.options.on_lost
        face = None if self.face is None else self.face()
        if callable(on_lost) and face is not None:
            guarded(log, "on_lost_failed", on_lost, face)
        self.followers.ended(lease.reason or "expired")
        log_event(
            log,
            "lost",
            resource=lease.resource.label,
            why=lease.reason,
            fence=lease.fence,
        )

    def leave(self, *, quietly: bool) -> Awaitable[object]:
        """Release the grant at the end of its body; see ``ReleasesBody``."""
        if quietly:
            # Without waiting: a wait that is cancelled would hide the body's error.
            self.give_back()
            return _nothing()
        state = self.lease.state
        over = self._closed_under or (state is LOST and self.session.closed)
        # Not of a grant that was released or detached in the body: that is fine.
        if not over and (state is HELD or state is LOST):
            return self.release()
        if over and self.options.on_lost == "raise":
            raise self.error()
        return _nothing()

    def leave_if_lost(self, *, quietly: bool) -> Awaitable[object]:
        """Call ``leave`` if the grant is lost or its ``Locks`` is closed."""
        if self._closed_under or self.lease.expired():
            return self.leave(quietly=quietly)
        return _nothing()

    def _cancel_bodies(self) -> None:
        self._bodies_lost = True
        for body in self._bodies:
            body.cancel()

    def _end(self, state: LeaseState) -> bool:
        ended = self.lease.end(state)
        if ended:
            self.session.forget(self.lease)
        return ended


async def _nothing() -> None: ...


def _always(_owner: weakref.ref[object]) -> bool:
    return True
