"""SQL statements: read from files, and run one by one as a plan yields them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row import Plan, StatementResult
from aiorwlock_remote.core.uncertainty import after_change
from aiorwlock_remote.errors import BackendError


@cache
def load_statements(package: str, file: str) -> dict[str, str]:
    """Return the SQL statements in a package's ``file``, by name.

    Above each statement stands its name, in a line ``-- name: x``.
    """
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
    """Run the statements that the generator ``plan`` yields; return its result.

    ``await run(statement)`` is a statement's result, which the generator is sent.
    """
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
    """Run ``plan``, a generator that yields statements, outside of a transaction.

    ``carry`` runs a plan and commits each statement at once. Return the plan's result.
    If a statement fails after an earlier one has changed rows, the error's attribute
    ``nothing_done`` is False, so that the caller does not repeat the plan.
    """
    changed = False
    result: Pending[T] = Pending()

    def noting_changes() -> Plan[S, T]:
        nonlocal changed
        try:
            statement = next(plan)
            while True:
                ran = yield statement
                changed = changed or bool(ran.count)
                statement = plan.send(ran)
        except StopIteration as done:
            value: T = done.value
            return value

    def carried(done: Pending[T]) -> None:
        error = done.error
        if error is None:
            result.set_result(done.result())
        # ``nothing_done`` would be true of the last statement alone: the rows that an
        # earlier one changed stay changed.
        elif changed and isinstance(error, BackendError):
            result.set_exception(after_change(error))
        else:
            result.set_exception(error)

    carry(noting_changes()).add_done_callback(carried)
    return result
