"""Plans of row locks, each carried out in a task of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.plan_runner import run_plan_autocommit
from aiorwlock_remote.core.row_plans import Plan

S = TypeVar("S")
T = TypeVar("T")


class PlanRunner(ABC, Generic[S]):
    """Beyond any caller's cancellation."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, plan: Plan[S, T]) -> Pending[T]:
        """As ``SupportsRowLocks.carry``."""
        return run_plan_autocommit(self._begin, plan)

    @abstractmethod
    async def carried(self, plan: Plan[S, T], pending: Pending[T]) -> None:
        """Resolve it, or let it fail."""

    def _begin(self, plan: Plan[S, T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        task = asyncio.get_running_loop().create_task(self.carried(plan, pending))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return pending
