"""A pool: takes mutexes of one set for the tasks of this process, or waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import anyio

from aiorwlock_remote._util.pending import checkpoint
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mutex_set import Busy, SetMember, Taken, TakeRequest
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import Closed, LockTimeout
from aiorwlock_remote.ports.recipes import MutexSetMembers
from aiorwlock_remote.runtime.acquirer import BaseAcquirer
from aiorwlock_remote.runtime.fork import disable_in_children
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.set_wait_queue import SetWaitQueue, TargetWaiter
from aiorwlock_remote.runtime.store_client import StoreClient


class SetAcquirer(BaseAcquirer):
    """Waits for mutexes of one set, and takes them."""

    def __init__(
        self,
        name: str,
        drive: StoreClient,
        members: Callable[[Callable[[str | None], object]], MutexSetMembers],
        look_every: float,
    ) -> None:
        """``members`` opens the set in the store; ``look_every`` seconds it is asked.

        ``revalidate_seconds`` of the published design: in case no message came.
        """
        super().__init__(
            drive.host.clock, drive.keeper, drive.admission, drive.patience
        )
        self._name = name
        self._drive = drive
        self._lanes = SetWaitQueue(drive.host, drive.insisting, members, look_every)
        self._waiting: set[TargetWaiter] = set()
        disable_in_children(self)

    @property
    def members(self) -> MutexSetMembers:
        """The set in the store."""
        return self._lanes.members

    def close(self, error: BaseException) -> None:
        """End all waiting with ``error``."""
        for waiter in list(self._waiting):
            self._lanes.leave(waiter)
            waiter.decide(error)

    def sever(self) -> None:
        """This process is a forked child: send nothing from now on."""
        self._lanes.sever()

    def _let_go(self, lease: Lease) -> None:
        self._drive.release(lease).log_failure()

    async def _try(self, request: AcquireRequest) -> Lease:
        waiter = self._waiter(request)
        asked = TakeRequest(waiter.target, waiter.claim.ticket, waiter.lease)

        async def ask() -> Taken | Busy:
            waiter.sent_at = self._clock.now()
            (answer,) = (await self.members.ask((asked,), 0.0)).answers
            if isinstance(answer, BaseException):
                raise answer
            return answer

        with self._drive.closing.under(partial(self._forget, waiter)):
            try:
                answer = await self._drive.answer(ask)
                await checkpoint()
            except BaseException as exc:
                await self._take_back(request, waiter, exc)
                raise
        if isinstance(answer, Busy):
            raise self._timed_out(request, answer)
        waiter.took = answer
        return self._lease(request, waiter)

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        waiter = self._waiter(request)
        waiter.until = self._clock.now() + self._drive.patience
        if until is not None:
            waiter.until = min(waiter.until, until)
        self._waiting.add(waiter)
        self._lanes.join(waiter)
        self._admission.let_in()
        try:
            left = None if until is None else max(0.0, until - self._clock.now())
            with anyio.move_on_after(left):
                await waiter.ready
        except BaseException:
            if not isinstance(waiter.error, Closed):
                self._lanes.leave(waiter)
            raise
        finally:
            self._waiting.discard(waiter)
        if waiter.error is not None:
            await self._take_back(request, waiter, waiter.error, until)
            raise waiter.error
        if waiter.took is None:
            self._lanes.leave(waiter)
            raise self._timed_out(request, None)
        return self._lease(request, waiter)

    async def _take_back(
        self,
        request: AcquireRequest,
        waiter: TargetWaiter,
        error: BaseException,
        until: float | None = None,
    ) -> None:
        """Whatever the store made of it, nothing stays; who is told waits for that."""
        if not is_uncertain(error):
            return
        withdrawn = self._lanes.withdraw(waiter)
        if isinstance(error, Exception):
            resource, claim = request.resource, waiter.claim
            await self._drive.resolve(error, resource, withdrawn, claim, until)
        withdrawn.log_failure()

    def _forget(self, waiter: TargetWaiter) -> None:
        self._lanes.withdraw(waiter).log_failure()

    def _waiter(self, request: AcquireRequest) -> TargetWaiter:
        return TargetWaiter(request.resource, self._drive.asking.claim(request))

    def _lease(self, request: AcquireRequest, waiter: TargetWaiter) -> Lease:
        took = waiter.took
        assert took is not None
        member = SetMember(self._name, took.name)
        grant = Grant(
            waiter.claim.ticket,
            Mode.WRITE,
            took.fence,
            took.fence,
            took.fence + waiter.lease,
        )
        mine = replace(request, resource=member)
        return self._drive.lease(mine, grant, waiter.sent_at)

    def _timed_out(self, request: AcquireRequest, busy: Busy | None) -> LockTimeout:
        after = None if busy is None or busy.retry_after is None else busy.retry_after
        return LockTimeout(
            resource=request.resource.label,
            mode=str(Mode.WRITE),
            timeout=request.timeout or 0.0,
            retry_after=None if after is None else after / 1e6,
        )
