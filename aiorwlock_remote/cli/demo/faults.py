"""The script of a demo: what is done to whom, and when.

The worker processes: started, given orders, stopped, killed, and always ended.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, final

import anyio

from aiorwlock_remote.cli.demo.screen import short
from aiorwlock_remote.cli.demo.worker import GO_ON, HOLD, HoldReport, WorkerPlan
from aiorwlock_remote.cli.worker_process import WorkerProcess, within
from aiorwlock_remote.testing.history import Access, Event, Granted, Lost, now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from aiorwlock_remote import RWLock
    from aiorwlock_remote.cli.demo.screen import DemoState, Stage
    from aiorwlock_remote.cli.demo.worker import HoldReport
    from aiorwlock_remote.testing.history import History


MODULE = "aiorwlock_remote.cli.demo.worker"
START, FINISH, LEAVE = 30.0, 30.0, 5.0
"""Seconds that all together may take to start, to finish, and to leave a demo that
is interrupted: who is killed then leaves a grant or a place behind."""


@final
class DemoWorker(WorkerProcess):
    """One worker."""

    ledger: str = ""

    @classmethod
    async def hire(cls, plan: WorkerPlan) -> Self:
        """Start its process and hand it the plan."""
        errors = Path(plan.folder) / f"{plan.name}.err"
        member = await cls.start(plan.name, MODULE, json.dumps(asdict(plan)), errors)
        member.ledger = plan.ledger
        return member

    async def hold(self) -> HoldReport:
        """Order it to hold at its next write, and wait until it does."""
        await self.say(HOLD)
        return HoldReport(**json.loads(await self.line()))

    async def go_on(self) -> None:
        """The end of ``hold``."""
        await self.say(GO_ON)


@final
class WorkerPool:
    """All workers, from start to end. ``killed``: who did not end by himself."""

    def __init__(self, plans: Sequence[WorkerPlan]) -> None:
        self._plans = plans
        self.members: list[DemoWorker] = []
        self.killed: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        try:
            with within(START, "the workers", "start"):
                for plan in self._plans:
                    self.members.append(await DemoWorker.hire(plan))
                for member in self.members:
                    await member.ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def finish(self) -> None:
        """Let all finish their turns and end.

        Raises:
            CommandFailed: one ended otherwise, or not in time.
        """
        with within(FINISH, "the workers", "finish"):
            for member in self.members:
                await member.dismiss()
            for member in self.members:
                await member.ended()

    async def _end(self) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(LEAVE):
                for member in self.members:
                    await member.dismiss()
                for member in self.members:
                    await member.left()
            self.killed = tuple(m.name for m in self.members if m.killed or m.runs)
            for member in self.members:
                await member.aclose()


E = TypeVar("E", bound=Event)

POLL_INTERVAL = 0.02
ACT_TIMEOUT = 15.0
"""Seconds an act may take; only a machine in trouble needs them."""
STOP_AT, KILL_AT = 0.2, 0.5
"""Of the whole time."""


@final
@dataclass(slots=True)
class Victim:
    """Who was stopped or killed while it held. ``lease_end``: as the store told."""

    name: str
    ledger: str
    holder: str
    lease_end: int | None = None


@final
@dataclass(slots=True)
class InjectedFaults:
    """What was done; what came of it is in the history."""

    stopped: Victim | None = None
    killed: Victim | None = None


@final
class FaultPlan:
    """Stops a holder, later kills another, and tells what can be seen of it."""

    def __init__(
        self,
        crew: WorkerPool,
        locks: dict[str, RWLock],
        scene: DemoState,
        stage: Stage,
        history: History,
    ) -> None:
        self._crew = crew
        self._locks = locks
        self._scene = scene
        self._stage = stage
        self._history = history
        self.staged: InjectedFaults = InjectedFaults()

    async def play(self, seconds: float) -> None:
        """All of it."""
        began = anyio.current_time()
        members = self._crew.members
        await anyio.sleep_until(began + STOP_AT * seconds)
        with anyio.move_on_after(ACT_TIMEOUT):
            await self._stop(members[1])
        await anyio.sleep_until(began + KILL_AT * seconds)
        with anyio.move_on_after(ACT_TIMEOUT):
            await self._kill(members[0])
        await anyio.sleep_until(began + seconds)

    async def _stop(self, one: DemoWorker) -> None:
        holding = await one.hold()
        victim = Victim(one.name, one.ledger, holding.holder)
        self.staged.stopped = victim
        tell = self._stage.tell
        try:
            one.stop()
            self._scene.marks[one.name] = "stopped"
            tell(
                f"{one.name} stopped (SIGSTOP) after its read: it holds {one.ledger},"
                f" fence {short(holding.fence)}"
            )
            await self._wait_for_next(victim, holding, now())
            await self._see(
                Access, lambda e: e.resource == one.ledger and e.fence > holding.fence
            )
        finally:
            one.wake()
            del self._scene.marks[one.name]
        old = short(holding.fence)
        tell(f"{one.name} goes on (SIGCONT): it writes, with its old fence {old}")
        await one.go_on()
        lost = await self._see(Lost, lambda e: e.holder == holding.holder)
        await self._see(
            Access, lambda e: e.holder == holding.holder and e.serial is None
        )
        told = f"{one.name} was told LockLost ({lost.reason})"
        tell(f"{one.ledger} refused that write; {told}")

    async def _kill(self, one: DemoWorker) -> None:
        holding = await one.hold()
        victim = Victim(one.name, one.ledger, holding.holder)
        self.staged.killed = victim
        await one.kill()
        self._history.died(one.name)
        self._scene.marks[one.name] = "killed"
        self._stage.tell(
            f"{one.name} killed (SIGKILL): it holds {one.ledger},"
            f" fence {short(holding.fence)}"
        )
        await self._wait_for_next(victim, holding, now())

    async def _wait_for_next(
        self, victim: Victim, holding: HoldReport, at: int
    ) -> None:
        """See the lease run out, and who enters then."""
        victim.lease_end = await self._lease_end(victim.ledger, holding.grant)
        entered = await self._see(
            Granted, lambda e: e.resource == victim.ledger and e.at > at
        )
        late = (entered.at - (victim.lease_end or entered.at)) / 1e6
        self._stage.tell(
            f"the lease of {victim.name} ran out; {entered.process} entered"
            f" {victim.ledger} {late:.0f} ms later, fence {short(entered.fence)}"
        )

    async def _lease_end(self, ledger: str, grant: str) -> int | None:
        """When the store lets go of a grant that nobody renews any more."""
        end = None
        while True:
            at = now()
            holders = (await self._locks[ledger].info()).holders
            left = next((h.expires_in for h in holders if h.holder == grant), None)
            if left is None:
                return end
            end = at + int(left * 1e9)
            if left <= 0:
                return end
            await anyio.sleep(POLL_INTERVAL)

    async def _see(self, kind: type[E], wanted: Callable[[E], bool]) -> E:
        """The earliest event of that kind, as soon as it is recorded."""
        while True:
            self._scene.read()
            events = (e for e in self._scene.events if isinstance(e, kind))
            found = min(filter(wanted, events), key=lambda e: e.at, default=None)
            if found is not None:
                return found
            await anyio.sleep(POLL_INTERVAL)
