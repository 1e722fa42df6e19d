"""The worker processes of a demo, and the faults that are injected into them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio

from aiorwlock_remote.cli.demo.screen import E, first, short
from aiorwlock_remote.cli.demo.worker import GO_ON, HOLD, HoldReport, WorkerPlan
from aiorwlock_remote.cli.worker_process import WorkerProcess, end_workers, within
from aiorwlock_remote.testing.history import Access, Granted, Lost, now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorwlock_remote import RWLock
    from aiorwlock_remote.cli.demo.screen import DemoState, PlainOutput
    from aiorwlock_remote.testing.history import History

MODULE = "aiorwlock_remote.cli.demo.worker"
START_TIMEOUT, FINISH_TIMEOUT = 30.0, 30.0
"""Seconds that all workers together may take to start, to finish, and to end when the
demo is interrupted. A worker that is killed then leaves a grant or a queue entry."""


class DemoWorker(WorkerProcess):
    """Controls a worker of the demo; ``ledger``: name of the data that it works on."""

    ledger: str = ""

    @classmethod
    async def start_with(cls, plan: WorkerPlan) -> Self:
        errors = Path(plan.folder) / f"{plan.name}.err"
        worker = await cls.start(plan.name, MODULE, json.dumps(asdict(plan)), errors)
        worker.ledger = plan.ledger
        return worker

    async def hold(self) -> HoldReport:
        """Order a pause in the next write, and await it; return the grant held then."""
        await self.send(HOLD)
        return HoldReport(**json.loads(await self.receive()))

    async def go_on(self) -> None:
        """Order the worker to continue the write in which ``hold`` made it pause."""
        await self.send(GO_ON)


class WorkerPool:
    """Starts all workers on entering ``async with``, and ends them on leaving.

    ``killed``: names of the workers that had to be killed; set on leaving.
    """

    def __init__(self, plans: Sequence[WorkerPlan]) -> None:
        self._plans = plans
        self.workers: list[DemoWorker] = []
        self.killed: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        try:
            with within(START_TIMEOUT, "the workers", "start"):
                for plan in self._plans:
                    self.workers.append(await DemoWorker.start_with(plan))
                for worker in self.workers:
                    await worker.wait_ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def finish(self) -> None:
        """Let all workers end, and wait; ``CommandFailed`` if one fails or is late."""
        with within(FINISH_TIMEOUT, "the workers", "finish"):
            for worker in self.workers:
                await worker.dismiss()
            for worker in self.workers:
                await worker.wait_finished()

    async def _end(self) -> None:
        # Also after Ctrl-C (test_interrupted_it_leaves_nothing_behind).
        self.killed = tuple(await end_workers(self.workers))


# ------------------------------------------------------------------------ the faults

POLL_INTERVAL = 0.02
FAULT_TIMEOUT = 15.0
"""Seconds that one fault may take; only an overloaded machine needs so many."""
STOP_AT, KILL_AT = 0.2, 0.5
"""Shares of the demo's duration after which each fault begins."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Stops a worker that holds a lock, later kills another; prints what follows.

    ``locks``: the lock of each ledger, by its name; ``state``: what the workers have
    recorded; ``output``: where to print; ``history``: where to record a death;
    ``seen``: what followed, as soon as it was recorded: ``"stopped"``, ``"killed"``.
    """

    pool: WorkerPool
    locks: dict[str, RWLock]
    state: DemoState
    output: PlainOutput
    history: History
    seen: dict[str, str] = field(default_factory=dict[str, str])

    async def inject(self, seconds: float) -> None:
        """Stop one worker and kill another; takes ``seconds``, or until leases end."""
        began = anyio.current_time()
        workers = self.pool.workers
        await anyio.sleep_until(began + STOP_AT * seconds)
        with anyio.move_on_after(FAULT_TIMEOUT):
            await self._stop(workers[1])
        await anyio.sleep_until(began + KILL_AT * seconds)
        with anyio.move_on_after(FAULT_TIMEOUT):
            await self._kill(workers[0])
        await anyio.sleep_until(began + seconds)

    async def _stop(self, worker: DemoWorker) -> None:
        name, ledger = worker.name, worker.ledger
        holding = await worker.hold()
        fence = short(holding.fence)
        tell = self.output.tell
        try:
            worker.suspend()
            self.state.marks[name] = "stopped"
            tell(
                f"{name} stopped (SIGSTOP) after its read: it holds {ledger},"
                f" fence {fence}"
            )
            await self._wait_for_next(worker, holding)
            # The ledger refuses the old fence only after it has seen a newer one.
            await self._event(
                Access, lambda e: e.resource == ledger and e.fence > holding.fence
            )
        finally:
            # A worker that stays stopped could not finish when the demo ends.
            worker.resume()
            del self.state.marks[name]
        tell(f"{name} goes on (SIGCONT): it writes, with its old fence {fence}")
        await worker.go_on()
        lost = await self._event(Lost, lambda e: e.holder == holding.holder)
        await self._event(
            Access, lambda e: e.holder == holding.holder and e.serial is None
        )
        told = f"told LockLost ({lost.reason})"
        tell(f"{ledger} refused that write; {name} was {told}")
        self.seen["stopped"] = f"{name} held {ledger}; late write refused, {told}"

    async def _kill(self, worker: DemoWorker) -> None:
        name, ledger = worker.name, worker.ledger
        holding = await worker.hold()
        await worker.kill()
        # The history of the killed worker ends without a word about it.
        self.history.died(name)
        self.state.marks[name] = "killed"
        self.output.tell(
            f"{name} killed (SIGKILL): it holds {ledger}, fence {short(holding.fence)}"
        )
        entered = await self._wait_for_next(worker, holding)
        if entered is not None:
            ran_out = f"{name} held {ledger}; its lease ran out"
            self.seen["killed"] = f"{ran_out}, {entered}"

    async def _wait_for_next(
        self, worker: DemoWorker, holding: HoldReport
    ) -> str | None:
        # None: the store did not show the end of the lease.
        at, ledger = now(), worker.ledger
        end = await self._lease_end(ledger, holding.grant)
        entered = await self._event(
            Granted, lambda e: e.resource == ledger and e.at > at
        )
        later = f"{(entered.at - (end or entered.at)) / 1e6:.0f} ms later"
        self.output.tell(
            f"the lease of {worker.name} ran out; {entered.process} entered"
            f" {ledger} {later}, fence {short(entered.fence)}"
        )
        return None if end is None else f"{entered.process} entered {later}"

    async def _lease_end(self, ledger: str, grant: str) -> int | None:
        # The store is asked: the victim's own deadline lies before the store's.
        end = None
        while True:
            at = now()
            holders = (await self.locks[ledger].info()).holders
            left = next((h.expires_in for h in holders if h.holder == grant), None)
            if left is None:
                return end
            end = at + int(left * 1e9)
            if left <= 0:
                return end
            await anyio.sleep(POLL_INTERVAL)

    async def _event(self, kind: type[E], matches: Callable[[E], bool]) -> E:
        while True:
            self.state.read()
            found = first(kind, self.state.events, matches)
            if found is not None:
                return found
            await anyio.sleep(POLL_INTERVAL)
