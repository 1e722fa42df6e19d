"""Files of statements: each by its name, kept out of the code.

Statements of a plan, carried out one after the other, each for itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row import Plan, StatementResult, note_changes
from aiorwlock_remote.core.uncertainty import after_change
from aiorwlock_remote.errors import BackendError


@cache
def load_statements(package: str, file: str) -> dict[str, str]:
    """The statements of a file, keyed by what follows ``-- name:``; no comments."""
    text = (files(package) / file).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        found[title.strip()] = "\n".join(lines).strip()
    return found


S = TypeVar("S")
T = TypeVar("T")


async def run_plan(
    plan: Plan[S, T], run: Callable[[S], Awaitable[StatementResult]]
) -> T:
    """What the plan makes of what its statements did, by a driver for asyncio."""
    try:
        statement = next(plan)
        while True:
            statement = plan.send(await run(statement))
    except StopIteration as done:
        value: T = done.value
        return value


def run_plan_autocommit(
    carry: Callable[[Plan[S, T]], Pending[T]], plan: Plan[S, T]
) -> Pending[T]:
    """Carry it out where each statement is committed at once.

    That nothing was done is said of the last one: not of a plan that had changed rows.
    """
    changed = False
    told: Pending[T] = Pending()

    def note() -> None:
        nonlocal changed
        changed = True

    def carried(done: Pending[T]) -> None:
        error = done.error
        if error is None:
            told.set_result(done.result())
        elif changed and isinstance(error, BackendError):
            told.set_exception(after_change(error))
        else:
            told.set_exception(error)

    carry(note_changes(plan, note)).add_done_callback(carried)
    return told
