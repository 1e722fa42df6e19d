"""The worker processes: started, given orders, stopped, killed, and always ended."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

import anyio

from aiorwlock_remote.cli.demo.worker import GO_ON, HOLD, HoldReport, WorkerPlan
from aiorwlock_remote.cli.worker_process import WorkerProcess, within

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

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
