"""Statements of a plan, carried out one after the other by a driver for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiorwlock_remote.core.row_plans import Plan, Ran

S = TypeVar("S")
T = TypeVar("T")


async def driven(plan: Plan[S, T], run: Callable[[S], Awaitable[Ran]]) -> T:
    """What the plan makes of what its statements did."""
    try:
        statement = next(plan)
        while True:
            statement = plan.send(await run(statement))
    except StopIteration as done:
        value: T = done.value
        return value
