"""Records the SQLite store: the stored text around each step, read in its transaction.

A step is written down before the commit of its batch, and the commit after it. The
stored texts are the versions: each has the time of its step, so none comes twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest.mock import patch

from aiorwlock_remote.backends.sqlite import store
from aiorwlock_remote.backends.sqlite.store import Row, SqliteConnection
from aiorwlock_remote.core import transition as core
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from tests.traces.history import NOTHING, Journal, Request, State


@dataclass(frozen=True, slots=True)
class Stepped:
    """Fact: a step was computed and its result written, in an open transaction."""

    number: int
    resource: str
    command: Command
    now: int
    floor: int
    before: Row
    after: Row
    reply: Reply


@dataclass(frozen=True, slots=True)
class Committed:
    """Fact: the transaction of these steps was committed."""

    numbers: tuple[int, ...]


class _Batch(threading.local):
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.times: tuple[int, int] = (0, 0)


@contextmanager
def recorded_steps(journal: Journal) -> Iterator[None]:
    """Write down what every connection of this process does."""
    step = SqliteConnection._step
    carry_out = SqliteConnection._carry_out_all
    transition: Callable[..., Step] = core.transition
    batch = _Batch()

    def watched_transition(
        record: Doorman | None,
        seat: MutexRecord | None,
        command: Command,
        now: int,
        floor: int,
        *,
        semaphore: bool,
    ) -> Step:
        batch.times = now, floor
        return transition(record, seat, command, now, floor, semaphore=semaphore)

    def watched_step(self: Any, resource: Resource, command: Command) -> Step:  # noqa: ANN401 - a connection
        before = _row(self, resource.row)
        stepped = step(self, resource, command)
        number, key = journal.number(), resource.key
        after, times = _row(self, resource.row), batch.times
        journal.write(
            Stepped(number, key, command, *times, before, after, stepped.reply)
        )
        batch.numbers.append(number)
        return stepped

    def watched_carry_out(
        self: Any,  # noqa: ANN401 - a connection
        steps: list[tuple[Resource, Command]],
        *options: Any,  # noqa: ANN401 - as they come
    ) -> list[Step | Exception]:
        batch.numbers = []
        done = carry_out(self, steps, *options)
        journal.write(Committed(tuple(batch.numbers)))
        return done

    with (
        patch.object(store, "transition", watched_transition),
        patch.object(SqliteConnection, "_step", watched_step),
        patch.object(SqliteConnection, "_carry_out_all", watched_carry_out),
    ):
        yield


def requests_of(journals: Iterable[tuple[str, Iterable[object]]]) -> list[Request]:
    """Return the requests in the journals of several processes, in no order."""
    found: list[Request] = []
    for process, facts in journals:
        steps: dict[int, Request] = {}
        for fact in facts:
            if isinstance(fact, Stepped):
                steps[fact.number] = _request_of(process, fact)
            elif isinstance(fact, Committed):
                for number in fact.numbers:
                    steps[number] = replace(steps[number], certain=True)
            else:
                raise TypeError(f"not a fact of SQLite: {fact!r}")
        found += steps.values()
    return found


def _request_of(process: str, fact: Stepped) -> Request:
    before, after = _state_of(fact.before), _state_of(fact.after)
    return Request(
        process,
        fact.resource,
        fact.command,
        fact.now,
        fact.floor,
        fact.floor,
        before,
        after,
        fact.reply,
        start=None if before == NOTHING else fact.before,
        end=None if after == NOTHING else fact.after,
        certain=False,
    )


def _state_of(row: Row) -> State:
    text, _, ticket, since = row
    seat = None if ticket is None else MutexRecord(f"{ticket},{since}")
    return State(None if text is None else loads(text), seat)


def _row(connection: Any, key: tuple[str, int]) -> Row:  # noqa: ANN401 - a connection
    sql: str = connection._sql["load"]
    return cast("Row", connection._run(sql, key).fetchone())
