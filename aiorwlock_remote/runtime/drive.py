"""The drive: acquire, release and move grants over a store, safe to cancel anywhere.

Requests are handed to the store without awaiting (``Store.step``), and a cancelled
caller hands over the withdrawal before it lets the cancellation pass. So no await here
needs to be shielded, however often it is cancelled.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Withdraw,
)
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    Closed,
    LockError,
    LockTimeout,
)
from aiorwlock_remote.ports import Pending, Settings, Store
from aiorwlock_remote.runtime.closing import Closing
from aiorwlock_remote.runtime.gate import Gate, Visitor
from aiorwlock_remote.runtime.host import LoopHost
from aiorwlock_remote.runtime.insisting import Insisting
from aiorwlock_remote.runtime.keep import Keeper
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import Asking, Request
from aiorwlock_remote.runtime.room import Room
from aiorwlock_remote.runtime.severed import Severed, sever_in_children
from aiorwlock_remote.runtime.slow import slow_line, waited
from aiorwlock_remote.runtime.taking import Taking

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class Drive(Taking):
    """Everything that talks to the store on behalf of the public classes."""

    def __init__(
        self, store: Store, room: Room, host: LoopHost, settings: Settings
    ) -> None:
        """Nothing is sent, and no thread is started before a grant is asked for."""
        super().__init__(host.clock, Keeper(store.renewer, host))
        self.store: Store = store
        self.host = host
        self.gate_name: str = settings.gate
        self.room = room
        self.asking: Asking = Asking(host)
        self.closing: Closing = Closing()
        self._insisting = Insisting(host, self.closing, self.take_back)
        self._patience: float = settings.connect_timeout
        self._visitors: dict[Visitor, tuple[Gate, Mode]] = {}
        sever_in_children(self)

    def release(self, lease: Lease) -> Pending[Reply]:
        """Send the release; waiters of this process ask in the same request."""
        released = self.room.gate(lease.resource).release(lease.ticket)
        return self._insisting.on(lease, released)

    async def renew(self, lease: Lease, seconds: float | None) -> Grant | NotHeld:
        """One renewal by hand."""
        sent_at = self._clock.now()
        length = None if seconds is None else micros(seconds)
        command = Renew(((lease.ticket, length),))
        reply = await self.store.step(lease.resource, command)
        assert isinstance(reply, Renewed)
        outcome = reply.outcomes[0]
        if isinstance(outcome, NotHeld):
            lease.lose(outcome.reason)
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
                reply = await self.store.step(resource, command)
                await checkpoint()
            except BaseException as exc:
                if isinstance(exc, BackendUnavailable) and exc.nothing_done:
                    raise
                withdrawn = self.take_back(resource, undo.ticket)
                if isinstance(exc, BackendUnavailable):
                    await self.resolve(resource, withdrawn, undo)
                withdrawn.unawaited()
                raise
        return reply

    def take_back(
        self, resource: Resource, *tickets: str, upgrader: str = ""
    ) -> Pending[Reply]:
        """Whatever became of these tickets, nothing is held by them."""
        # The mode is that of a place, which stays: any will do.
        gate, mode = self.gate_name, Mode.READ
        gone = Withdraw(gate, mode, tickets, keep=True, upgrader=upgrader)
        return self.store.step(resource, gone)

    def lease(self, request: Request, grant: Grant, sent_at: float) -> Lease:
        """What a grant is to this process."""
        return Lease(request.resource, grant, request.terms, sent_at, self._clock)

    async def resolve(
        self,
        resource: Resource,
        withdrawn: Pending[Any],
        claim: Claim,
        until: float | None = None,
    ) -> None:
        """Wait until a withdrawal has been carried out: then nothing is held.

        For ``connect_timeout`` at most, and not past ``until``, a local time.

        Raises:
            AcquireUncertain: nobody knows in that time.
        """
        failure: BackendError | None = None
        patience = self._patience
        if until is not None:
            patience = max(0.0, min(patience, until - self._clock.now()))
        with anyio.move_on_after(patience):
            try:
                await withdrawn
            except BackendError as exc:
                failure = exc
            else:
                return
        withdrawn.unawaited()
        seconds = None if claim.lease is None else claim.lease / 1e6
        raise AcquireUncertain(
            resource=resource.label, holder=holder_of(claim.ticket), lease=seconds
        ) from failure

    def end_waiting(self, error: BaseException) -> None:
        """With ``error``; from now on nothing is handed out."""
        for visitor, (gate, mode) in list(self._visitors.items()):
            gate.leave(visitor, mode)
            visitor.grant, visitor.error = None, error
            visitor.decide()
        self.closing.close()

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
        self.store = Severed(self.store)
        self.room.sever(self.store)

    def _let_go(self, lease: Lease) -> None:
        self.store.step(lease.resource, Release(lease.ticket)).unawaited()

    def _forget(self, resource: Resource, claim: Claim) -> None:
        self.take_back(resource, claim.ticket).unawaited()

    async def _try(self, request: Request) -> Lease:
        claim = self.asking.claim(request)
        command = Acquire((claim,), request.mode, request.policy)
        sent_at = self._clock.now()
        reply = await self.ask(request.resource, command, claim)
        if isinstance(reply, Granted):
            return self.lease(request, reply.grants[0], sent_at)
        assert isinstance(reply, Refused)
        raise self._timed_out(request, reply.holders, reply.retry_after)

    async def _wait(self, request: Request, until: float | None) -> Lease:
        gate = self.room.gate(request.resource)
        joined_at = self._clock.now()
        visitor = Visitor(
            self.asking.claim(request), request.policy, request.max_waiters
        )
        self._visitors[visitor] = gate, request.mode
        try:
            gate.join(visitor, request.mode)
            if visitor.ready.done:
                await checkpoint()
            elif until is None and request.slow_wait is None:
                await visitor.ready
            else:
                left = None if until is None else until - self._clock.now()
                with anyio.move_on_after(left):
                    await self._patiently(visitor, request, gate)
        except BaseException:
            if not isinstance(visitor.error, Closed):
                gate.leave(visitor, request.mode)
            raise
        finally:
            del self._visitors[visitor]
        if visitor.grant is not None:
            return self.lease(request, visitor.grant, visitor.sent_at)
        if isinstance(visitor.error, Closed):
            raise visitor.error
        gate.leave(visitor, request.mode)
        if visitor.error is not None:
            await self._turned_away(request, visitor, gate, until)
            raise visitor.error
        told = visitor.told
        if told is None:
            unanswered = gate.heard_at < joined_at
            raise self._timed_out(request, (), None, unanswered=unanswered)
        raise self._timed_out(request, told.holders, told.retry_after)

    async def _patiently(self, visitor: Visitor, request: Request, gate: Gate) -> None:
        if request.slow_wait is not None:
            with anyio.move_on_after(request.slow_wait):
                await visitor.ready
                return
            # On its own: whoever waits is not to wait for this.
            self.host.spawn(partial(self._tell_slow, visitor, request, gate))
        await visitor.ready

    async def _tell_slow(self, visitor: Visitor, request: Request, gate: Gate) -> None:
        try:
            seen = await self.store.look(request.resource)
        except LockError as exc:
            log.warning("%s: %s", waited(request), exc)
            return
        if not visitor.ready.done:
            before = gate.before(visitor, request.mode)
            log.warning(slow_line(request, seen, self.gate_name, before))

    async def _turned_away(
        self, request: Request, visitor: Visitor, gate: Gate, until: float | None
    ) -> None:
        error = visitor.error
        if isinstance(error, BackendUnavailable) and not error.nothing_done:
            keep = gate.waits(request.mode)
            command = Withdraw(
                self.gate_name, request.mode, (visitor.ticket,), keep=keep
            )
            withdrawn = self.store.step(request.resource, command)
            await self.resolve(request.resource, withdrawn, visitor.claim, until)

    def _timed_out(
        self,
        request: Request,
        holders: tuple[str, ...],
        retry_after: int | None,
        *,
        unanswered: bool = False,
    ) -> LockTimeout:
        return LockTimeout(
            resource=request.resource.label,
            mode=str(request.mode),
            timeout=request.timeout or 0.0,
            holders=holders,
            retry_after=None if retry_after is None else retry_after / 1e6,
            unanswered=unanswered,
        )


def was_held(reply: Reply) -> NotHeld | None:
    """None if a release found its grant, else why it was gone."""
    assert isinstance(reply, Released)
    return None if reply.held else NotHeld(reply.reason)
