"""The drive: asks a store for all who hold or want something, safe to cancel anywhere.

Requests are handed to the store without awaiting (``Store.step``), and a cancelled
caller hands over the withdrawal before it lets the cancellation pass. So no request
needs to be shielded, however often its caller is cancelled; only closing is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.pending import checkpoint, gather_pending
from aiorwlock_remote.core.commands import (
    Claim,
    Command,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import AcquireUncertain, BackendError, BackendUnavailable
from aiorwlock_remote.ports import FailsOver, Pending, Store, StoreSettings
from aiorwlock_remote.runtime.cleanup import (
    CleanupRetrier,
    InFlightGrants,
    ask_with_retries,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.fork import ForkedStore, disable_in_children
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper
from aiorwlock_remote.runtime.request import AcquireRequest, ClaimFactory
from aiorwlock_remote.runtime.throttle import AcquireThrottle
from aiorwlock_remote.runtime.wait_queue import WaitQueueRegistry

T = TypeVar("T")


class StoreClient:
    """What is asked of the store for tries, moves, releases and renewals by hand.

    Waiting is the gates' business (``LockAcquirer``), renewing in time the keeper's. A
    release goes through the gate of its resource, which adds the next waiter's request.
    """

    def __init__(
        self,
        store: Store,
        room: WaitQueueRegistry,
        host: TaskEventLoop,
        settings: StoreSettings,
    ) -> None:
        """Nothing is sent, and no thread is started before a grant is asked for."""
        self.store: Store = store
        self.host = host
        self.admission: AcquireThrottle = room.admission
        self.keeper: LeaseKeeper = LeaseKeeper(store.renewer, host, self._behind)
        if isinstance(store, FailsOver) and store.on_failover(self.keeper.renew_all):
            self.keeper.doubts()
        self.client_id: str = settings.client_id
        self.prefix: str = settings.prefix
        self.room = room
        self.asking: ClaimFactory = ClaimFactory(host)
        self.insisting: CleanupRetrier = room.insisting
        self.closing: InFlightGrants = self.insisting.closing
        self.patience: float = settings.connect_timeout
        disable_in_children(self)

    def release(self, lease: Lease) -> Pending[Reply]:
        """Send the release; waiters of this process ask in the same request.

        What requests under way may have moved it to is released behind it.
        """
        resource, gate = lease.resource, self.room.queue(lease.resource)
        if not lease.moving:
            released = gate.release(lease.ticket)
            again = partial(self._release, resource, lease.ticket)
        else:
            *before, last = tickets = lease.ticket, *lease.moving
            releases = [self._release(resource, one) for one in before]
            released = gather_pending([*releases, gate.release(last)], _any_held)
            again = partial(self._release_all, resource, tickets)
        return self.insisting.on(released, resource, again, lease.left)

    async def renew(self, lease: Lease, seconds: float | None) -> Grant | NotHeld:
        """One renewal by hand."""
        sent_at = self.host.clock.now()
        length = None if seconds is None else micros(seconds)
        command = Renew(((lease.ticket, length),))
        reply = await self.answer(partial(self.store.step, lease.resource, command))
        assert isinstance(reply, Renewed)
        outcome = reply.outcomes[0]
        if isinstance(outcome, NotHeld):
            lease.gone(outcome.reason)
        else:
            never = outcome.expires is None
            lease.renewed(sent_at, None if never else seconds)
        return outcome

    async def ask(self, resource: Resource, command: Command, undo: Claim) -> Reply:
        """A command that may grant ``undo``; taken back if the caller is cancelled.

        Raises:
            AcquireUncertain: the store never said.
            Closed: the ``Locks`` was closed meanwhile.
            BackendError: the store failed.
        """
        with self.closing.under(partial(self._forget, resource, undo)):
            try:
                reply = await self.answer(partial(self._asked, resource, command))
                await checkpoint()
            except BaseException as exc:
                if is_uncertain(exc):
                    withdrawn = self.withdraw(resource, undo)
                    if isinstance(exc, Exception):
                        await self.resolve(exc, resource, withdrawn, undo)
                    withdrawn.log_failure()
                raise
        return reply

    def release_in_background(self, lease: Lease) -> None:
        """Release what nobody was told of."""
        resource, seconds = lease.resource, lease.terms.lease
        again = partial(self._release, resource, lease.ticket)
        released = self.insisting.on(again(), resource, again, seconds)
        released.log_failure()

    def withdraw(
        self,
        resource: Resource,
        claim: Claim,
        *,
        instead_of: str | None = None,
    ) -> Pending[Reply]:
        """Whatever became of a claim, nothing is held by it, and nobody waits to move.

        Nor by the ticket that it was to take the place of.
        """
        moved = () if instead_of is None else (instead_of,)
        tickets = *moved, claim.ticket
        withdrawn = self._withdraw(resource, tickets, instead_of or "")
        again = partial(self._withdraw, resource, tickets)
        return self.insisting.on(withdrawn, resource, again, claim.seconds)

    def step_back(self, resource: Resource, upgrader: str) -> None:
        """A reader that waited to become a writer does not want to any more."""
        self._withdraw(resource, (), upgrader).log_failure()

    def lease(self, request: AcquireRequest, grant: Grant, sent_at: float) -> Lease:
        """What a grant is to this process."""
        return Lease(request.resource, grant, request.terms, sent_at, self.host.clock)

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store answers; see ``ask_with_retries``.

        Raises:
            LockError: what the last request failed with.
            Closed: the ``Locks`` was closed during a pause: what was to be taken back
                has been, and would be granted now.
        """
        clock, check = self.host.clock, self.closing.check
        return await ask_with_retries(ask, clock, self.patience, check)

    async def resolve(
        self,
        error: BaseException,
        resource: Resource,
        withdrawn: Pending[Any],
        claim: Claim,
        until: float | None = None,
    ) -> None:
        """Wait until a withdrawal has been carried out: then nothing is held.

        For ``connect_timeout`` at most, and not past ``until``, a local time. ``error``
        says why the claim is withdrawn. If the store cannot be reached, nobody knows
        whether it granted; if the store itself refused, its reason is what helps.

        Raises:
            AcquireUncertain: nobody knows in that time.
        """
        failure: BackendError | None = None
        patience = self.patience
        if until is not None:
            patience = max(0.0, min(patience, until - self.host.clock.now()))
        with anyio.move_on_after(patience):
            try:
                await self.insisting.outcome(withdrawn)
            except BackendError as exc:
                failure = exc
            else:
                return
        withdrawn.log_failure()
        if not isinstance(error, BackendUnavailable):
            return
        raise AcquireUncertain(
            resource=resource.label,
            holder=holder_of(claim.ticket),
            lease=claim.seconds,
        ) from failure

    async def aclose(self) -> None:
        """Stop the keeper, close the store."""
        self.room.close()
        thread, done = self.keeper.close(), anyio.Event()

        async def finish() -> None:
            try:
                await self.store.aclose()
                if thread is not None:
                    await anyio.to_thread.run_sync(thread.join)
            finally:
                done.set()

        # A task of its own: what a native cancellation interrupts is only the waiting.
        self.host.spawn(finish)
        with anyio.CancelScope(shield=True):
            await done.wait()

    def sever(self) -> None:
        """This process is a forked child: send nothing from now on."""
        self.store = ForkedStore(self.store)
        self.room.sever(self.store)

    def _asked(self, resource: Resource, command: Command) -> Pending[Reply]:
        asked = self.store.step(resource, command)
        self.admission.sent(asked)
        return asked

    def _behind(self, late: bool) -> None:  # noqa: FBT001 - told by the keeper
        self.admission.behind = late

    def _forget(self, resource: Resource, claim: Claim) -> None:
        self.withdraw(resource, claim).log_failure()

    def _release(self, resource: Resource, ticket: str) -> Pending[Reply]:
        return self.store.step(resource, Release(ticket))

    def _release_all(
        self, resource: Resource, tickets: Sequence[str]
    ) -> Pending[Reply]:
        return gather_pending(
            [self._release(resource, one) for one in tickets], _any_held
        )

    def _withdraw(
        self, resource: Resource, tickets: tuple[str, ...], upgrader: str = ""
    ) -> Pending[Reply]:
        # The mode is that of a place, which stays: any will do.
        gate, mode = self.client_id, Mode.READ
        gone = Withdraw(gate, mode, tickets, keep=True, upgrader=upgrader)
        return self.store.step(resource, gone)


def _any_held(replies: Sequence[Reply]) -> Reply:
    """What to say of the releases of one grant under several tickets."""
    return next((reply for reply in replies if was_held(reply) is None), replies[0])


def was_held(reply: Reply) -> NotHeld | None:
    """None if a release found its grant, else why it was gone."""
    assert isinstance(reply, Released)
    return None if reply.held else NotHeld(reply.reason)
