"""A grip: one grant as this library holds it. Users see it through a ``Held``.

What is to be cancelled when a grant is lost. Lives in the loop's thread.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.mutex_set import SetMember
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.errors import (
    BackendError,
    Closed,
    ConfigurationError,
    LockLost,
    NotOwner,
)
from aiorwlock_remote.locks.observers import NO_OBSERVERS, AttemptObservers, GrantEnd
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import guarded, log_event
from aiorwlock_remote.runtime.lease import Lease, LeaseState
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import was_held


class LossScopes:
    """The scopes that one grant protects."""

    __slots__ = ("_happened", "_scopes")

    def __init__(self) -> None:
        self._scopes: list[anyio.CancelScope] = []
        self._happened = False

    def watch(self, scope: anyio.CancelScope) -> None:
        """Cancel this scope on loss; at once if it has happened."""
        self._scopes.append(scope)
        if self._happened:
            scope.cancel()

    def unwatch(self, scope: anyio.CancelScope) -> None:
        """Not any more."""
        if scope in self._scopes:
            self._scopes.remove(scope)

    def happened(self) -> None:
        """Cancel them all."""
        self._happened = True
        for scope in self._scopes:
            scope.cancel()

    def pass_on(self, other: LossScopes) -> None:
        """Another grant protects the same scopes from now on."""
        scopes, self._scopes = self._scopes, []
        for scope in scopes:
            other.watch(scope)


log: logging.Logger = logging.getLogger("aiorwlock_remote.held")

Mover = Callable[[AcquireRequest], Awaitable[Lease | None]]
Sender = Callable[[Lease], Pending[Reply]]


class _MoveChain:
    """What was one grant after the other: none of them keeps those between."""

    newest: HeldState


class HeldState:
    """A grant, whose it is, and what happens when it ends.

    ``owned_by_task``: it lives as long as the task that got it, as in ``async with``;
    else as long as something refers to ``face``, the user's ``Held``. ``shared``: whose
    ticket it is goes on holding it, too.

    It ends in one of these ways. The store is asked, and its answer waited for:
    ``release``, and ``leave`` at the end of an ``async with``. Asked, and not waited
    for: ``give_back``, ``close`` with the ``Locks``, and ``on_lost`` if it was held
    for too long. Not asked: ``detach`` for another holder; ``abandon``, nobody can
    release it any more; ``on_lost`` otherwise. Or it is moved: ``newest`` is what it
    has become.
    """

    def __init__(
        self,
        session: Session,
        lease: Lease,
        options: Options,
        followers: AttemptObservers,
        *,
        owned_by_task: bool,
    ) -> None:
        self.session = session
        self.lease = lease
        self.options = options
        self.owned_by_task = owned_by_task
        self.loss: LossScopes = LossScopes()
        self.face: weakref.ref[object] | None = None
        self.shared: bool = False
        self._closed_under = False
        self._given_back = False
        self._followers = followers
        self._line: _MoveChain | None = None

    def shown_as(self, face: object) -> None:
        """From now on it is the user's, and the keeper looks after it."""
        self.face = weakref.ref(face)
        lease = self.lease
        self.session.admit(self, lease, owned_by_task=self.owned_by_task)
        self._followers.obtained(lease.resource, lease.fence)

    @property
    def newest(self) -> HeldState:
        """This grant, or what it was moved to."""
        return self if self._line is None else self._line.newest

    def check(self) -> None:
        """Make sure that it is still held; no I/O."""
        if self._closed_under or self.lease.expired():
            raise self.error()
        if self.lease.state is not LeaseState.HELD:
            raise NotOwner(resource=self.lease.resource.label, action="use")

    def error(self) -> LockLost | Closed:
        """The error that says how it was lost."""
        if self._closed_under:
            return Closed()
        lease = self.lease
        return LockLost(
            reason=lease.reason or "expired",
            resource=lease.resource.label,
            mode=str(lease.mode),
            fence=lease.fence,
        )

    def plain(self, action: str) -> None:
        """Refuse what makes no sense for a mutex of a set.

        Raises:
            ConfigurationError: it is one.
        """
        resource = self.lease.resource
        if isinstance(resource, SetMember):
            raise ConfigurationError(
                what=f"{resource.label} is a mutex of a set: no {action}"
            )

    async def release(self, send: Sender | None = None) -> bool:
        """Give it back; see ``Held.release``. ``send``: in another way than usual."""
        lease, drive = self.lease, self.session.drive
        if self.newest is not self or lease.state is LeaseState.DETACHED:
            raise NotOwner(resource=lease.resource.label, action="release")
        if lease.state is LeaseState.RELEASED:
            return False
        self.session.check()
        if lease.expired():
            self.give_back()
        elif self._end(LeaseState.RELEASED):
            how: GrantEnd = "released"
            try:
                released = (send or drive.release)(lease)
                gone = was_held(await drive.insisting.outcome(released))
                if gone is None:
                    return True
                how = lease.reason = gone.reason
            finally:
                self._followers.ended(how)
        if self.options.on_lost == "raise":
            raise self.error()
        return False

    async def leave(self) -> None:
        """``release`` at the end of an ``async with``: given away is fine, too."""
        state, closed = self.lease.state, self.session.closed
        over = self._closed_under or (state is LeaseState.LOST and closed)
        if not over and state in (LeaseState.HELD, LeaseState.LOST):
            await self.release()
        elif over and self.options.on_lost == "raise":
            raise self.error()

    def give_back(self) -> None:
        """Release without waiting for the answer; nothing if it was given away.

        What is lost, too: the store may hold it longer than we believe in it. In a
        forked child nothing is released: the grant is its parent's.
        """
        if self.session.forked:
            return
        lost = self.lease.expired()
        if self._given_back:
            return
        if lost or self._end(LeaseState.RELEASED):
            self.session.forget(self.lease)
            self.session.drive.release(self.lease).log_failure()
            self._followers.ended(self.lease.reason or "released")

    def close(self, task: object) -> None:
        """``task`` closes the ``Locks``: what it does under this grant is its business.

        What others do is cancelled: nothing protects it any more.
        """
        lease = self.lease
        mine = lease.owner is not None and lease.owner() is task
        self._closed_under = not mine and not lease.expired()
        self.give_back()
        if self._closed_under:
            self.loss.happened()

    def detach(self) -> None:
        """It is somebody else's from now on, or nobody's."""
        if self._end(LeaseState.DETACHED):
            self._followers.ended("detached")

    def _end(self, state: LeaseState) -> bool:
        """It is over; False if it was before."""
        ended = self.lease.end(state)
        if ended:
            self.session.forget(self.lease)
        return ended

    async def move(self, mode: Mode, mover: Mover) -> HeldState | None:
        """Downgrade or upgrade; None if it could not be done, and it is held still.

        Raises:
            LockLost, NotOwner, Closed: it is not, also if that came while it waited.
        """
        self.session.check()
        self.check()
        self.plain("readers")
        if self.lease.mode is mode:
            label = self.lease.resource.label
            raise ConfigurationError(what=f"{label} is held for {mode} already")
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
                self.session.check()  # closed meanwhile: that is why
                raise
            finally:
                if self.lease.state is not LeaseState.HELD:
                    self.session.forget(self.lease)
                    self._followers.ended(self.lease.reason or "moved")
        if lease is None:
            followers.failed(None)
            if self.lease.expired():
                raise self.error()
            self.session.check()
            self.check()
            return None
        owned = self.owned_by_task
        new = HeldState(
            self.session, lease, self.options, followers, owned_by_task=owned
        )
        self._line = new._line = self._line or _MoveChain()
        self._line.newest = new
        self.loss.pass_on(new.loss)
        return new

    def abandon(self) -> None:
        """The user's ``Held`` was dropped: the grant ends with its lease.

        When the ``Locks`` is closed it ends in any case.
        """
        self.lease.owner_gone = _nobody
        self.session.forget(self.lease)
        if self.lease.state is LeaseState.HELD:
            self.session.dropped.append(self.lease)
        if (
            self._followers is not NO_OBSERVERS
        ):  # a destructor may run anywhere, any time
            ended, how = self._followers.ended, self.lease.reason or "dropped"
            self.session.host.call_soon(ended, how)

    def keep_owner(self, old: HeldState) -> None:
        """A moved grant stays with the task that entered."""
        if self.owned_by_task:
            before = old.lease
            self.lease.owner, self.lease.owner_gone = before.owner, before.owner_gone

    def on_lost(self) -> None:
        """The loop's part of a loss: cancel what is watched, tell the user.

        A grant that was held for too long is given back; not one whose ticket others
        share, who go on holding it.
        """
        lease = self.lease
        self.session.forget(lease)
        self.loss.happened()  # first: what is told to others may take its time
        if lease.reason == "stalled" and not self.shared:
            # The store would keep it for a lease longer, or for ever without one. Here
            # and not in the keeper's thread: while the loop hangs, what hangs it may
            # write still, as `check` allowed it; until its deadline it has been
            # promised to be alone (``test_a_loop_that_hangs_keeps_its_lease``).
            self._given_back = True
            self.session.drive.release(lease).log_failure()
        on_lost = self.options.on_lost
        face = None if self.face is None else self.face()
        if callable(on_lost) and face is not None:
            guarded(log, "on_lost raised", on_lost, face)
        self._followers.ended(lease.reason or "expired")
        log_event(
            log,
            "lost",
            resource=lease.resource.label,
            why=lease.reason,
            fence=lease.fence,
        )


def _nobody(_owner: weakref.ref[object]) -> bool:
    return True
