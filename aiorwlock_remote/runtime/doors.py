"""The doors: takes locks for the tasks of this process, or waits at their gates."""

from __future__ import annotations

import logging
from functools import partial

import anyio

from aiorwlock_remote._util.pending import checkpoint
from aiorwlock_remote.core.commands import Acquire, Granted, Refused
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import Closed, LockError, LockTimeout
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.runtime.gate import Gate
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import Request
from aiorwlock_remote.runtime.slow_wait import slow_line, waited
from aiorwlock_remote.runtime.store_client import Drive
from aiorwlock_remote.runtime.taking import Taking
from aiorwlock_remote.runtime.visitor import Visitor

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class Doors(Taking):
    """Takes locks for the tasks of this process, or waits for them."""

    def __init__(self, drive: Drive) -> None:
        """Nobody waits yet."""
        super().__init__(
            drive.host.clock, drive.keeper, drive.admission, drive.patience
        )
        self._drive = drive
        self._visitors: dict[Visitor, tuple[Gate, Mode]] = {}

    def close(self, error: BaseException) -> None:
        """End all waiting with ``error``; from now on nothing is handed out."""
        self._admission.close(error)
        for visitor, (gate, mode) in list(self._visitors.items()):
            gate.leave(visitor, mode)
            visitor.grant, visitor.error = None, error
            visitor.decide()

    def _let_go(self, lease: Lease) -> None:
        self._drive.let_go(lease)

    async def _try(self, request: Request) -> Lease:
        claim = self._drive.asking.claim(request)
        command = Acquire((claim,), request.mode, request.policy)
        sent_at = self._clock.now()
        reply = await self._drive.ask(request.resource, command, claim)
        if isinstance(reply, Granted):
            return self._drive.lease(request, reply.grants[0], sent_at)
        assert isinstance(reply, Refused)
        raise self._timed_out(request, reply.holders, reply.retry_after)

    async def _wait(self, request: Request, until: float | None) -> Lease:
        gate = self._drive.room.gate(request.resource)
        visitor = Visitor(
            self._drive.asking.claim(request), request.policy, request.max_waiters
        )
        visitor.until = self._clock.now() + self._drive.patience
        if until is not None:
            visitor.until = min(visitor.until, until)
        self._visitors[visitor] = gate, request.mode
        try:
            try:
                gate.join(visitor, request.mode)
            finally:
                self._admission.let_in()
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
        return await self._outcome(visitor, request, gate, until)

    async def _outcome(
        self, visitor: Visitor, request: Request, gate: Gate, until: float | None
    ) -> Lease:
        """Return the grant of a task that waited, or raise what it has instead."""
        if visitor.grant is not None:
            return self._drive.lease(request, visitor.grant, visitor.sent_at)
        if isinstance(visitor.error, Closed):
            raise visitor.error
        if visitor.error is not None:
            if visitor.in_doubt:
                withdrawn = gate.take_back(visitor, request.mode)
                resource, claim = request.resource, visitor.claim
                error = visitor.error
                await self._drive.resolve(error, resource, withdrawn, claim, until)
            raise visitor.error
        said = gate.said(visitor, request.mode)
        gate.leave(visitor, request.mode)
        if said is None:
            raise self._timed_out(request, (), None, unanswered=True)
        raise self._timed_out(request, said.holders, said.retry_after)

    async def _patiently(self, visitor: Visitor, request: Request, gate: Gate) -> None:
        if request.slow_wait is not None:
            with anyio.move_on_after(request.slow_wait):
                await visitor.ready
                return
            # On its own: whoever waits is not to wait for this.
            self._drive.host.spawn(partial(self._tell_slow, visitor, request, gate))
        await visitor.ready

    async def _tell_slow(self, visitor: Visitor, request: Request, gate: Gate) -> None:
        try:
            seen = await self._drive.store.look(request.resource)
        except LockError as exc:
            log_event(log, f"{waited(request)}: {exc}")
            return
        if not visitor.ready.done:
            before = gate.before(visitor, request.mode)
            line = slow_line(request, seen, self._drive.gate_name, before)
            log_event(log, line)

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
