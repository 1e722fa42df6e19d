"""``StatementExecutor`` over the connections of an asyncio driver."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from aiorwlock_remote._util.driver_loop import (
    DriverLoop,
    loop_stopped,
    settle,
    submit,
    submit_and_wait,
)
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.cas.driver.pool import ConnectionPool, ConnectionSource, Driver
from aiorwlock_remote.cas.table_cas import StoredRow, Values
from aiorwlock_remote.core.row import Plan, Statement, StatementResult
from aiorwlock_remote.errors import BackendUnavailable

REQUESTS_PER_CONNECTION = 32
"""Requests of one batch that share a connection before another one is used."""

RENEWALS_PER_COMMIT = 64
"""Most renewals of one transaction, whose rows are locked until its commit."""
BYTES_PER_COMMIT = 250_000
"""Most bytes of their records together: servers limit the length of a request."""

T = TypeVar("T")
Asked = tuple[Values, Pending[StoredRow]]
"""A request's parameters, and its reply."""
Outcome = StoredRow | Exception | None
Work = Callable[[Any], Awaitable[T]]
Send = Callable[[str, Sequence[Values]], list[Pending[StoredRow]]]
MutexChange = Literal["sit", "move", "leave", "stay"]
"""What a swap does with the mutex row: inserts, updates, deletes or keeps it."""


class DriverExecutor(ABC):
    """Base class: sends swaps and reads over the connections of a database driver.

    Invariants, each with a test in ``tests/cas/test_executor.py`` that fails without
    it:

    * If a connection is idle, ``ask`` has sent its request when it returns
      (``test_a_request_leaves_before_its_caller_goes_on``).
    * Cancelling a caller neither cancels nor delays its request
      (``test_a_caller_that_is_cancelled_leaves_it_alone``).
    * Each request is answered; at once with an error if it cannot be sent
      (``test_what_cannot_be_sent_fails_at_once``).
    * Swaps of a batch that only renew share commits, and what refuses one of them fails
      no other (``tests/cas/test_renewed_together.py``).
    * A batch uses several connections, and an unanswered request delays only the later
      ones on its own connection (``test_many_requests_go_over_some_connections``,
      ``test_one_that_is_not_answered_holds_up_its_own_connection_only``).
    """

    def __init__(
        self,
        driver_loop: DriverLoop,
        source: ConnectionSource[Any],
        driver: Driver[Any],
    ) -> None:
        self.driver_loop = driver_loop
        self._source = source
        self.driver = driver
        self._runner = driver.runner(source)
        self._where = driver.options.where

    @property
    def connections(self) -> str:
        """The state of the connections for requests, in words."""
        source = self._source
        return source.state if isinstance(source, ConnectionPool) else "of your pool"

    @abstractmethod
    async def check_server(self, logged_in: Callable[[], object]) -> None:
        """Check that the server and its tables are suitable for locks.

        Args:
            logged_in: Called once, after the first login has succeeded. Only then are
                further connections opened, so that a wrong password is sent once.

        Raises:
            BackendError, ConfigurationError: The server or a table is unsuitable.
        """

    def swap(self, values: Values, connection: Any) -> Awaitable[StoredRow]:  # noqa: ANN401 - the driver's
        """Carry out a swap with the parameters ``values``.

        Return whether it was done; if it was refused, also what is stored.
        """
        raise NotImplementedError

    async def look(self, values: Values, connection: Any) -> StoredRow:  # noqa: ANN401 - the driver's
        """Return both stored rows of the resource whose key is in ``values``."""
        raise NotImplementedError

    async def renew(
        self,
        rows: Sequence[Values],
        connection: Any,  # noqa: ANN401 - the driver's
    ) -> Sequence[StoredRow | None]:
        """Carry out many swaps that only renew, in one transaction: one commit.

        Waits for no row. Returns an answer for each swap that was done, None for each
        other one, which is then sent alone, for its own error. If it fails, and the
        connection is not broken, nothing was done.
        """
        raise NotImplementedError

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        """Return the next resources in key order, each as type, id and stored rows.

        ``kind`` and ``number``: type and id to begin after. [] if there are no more.
        """
        raise NotImplementedError

    @abstractmethod
    async def run_row(self, statement: Statement, connection: Any) -> StatementResult:  # noqa: ANN401 - the driver's
        """Run one statement of a row lock on the user's own table, and commit it."""

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        pending: Pending[StoredRow] = Pending()
        # ``begin`` runs up to the first await without a task. That is allowed because
        # no source and no driver asks for the current task before it waits: what may
        # connect runs in a task of its own.
        self.driver_loop.begin(partial(self._answer, name, (values, pending)))
        return pending

    def ask_all(self, name: str, rows: Sequence[Values]) -> list[Pending[StoredRow]]:
        """Send ``rows`` as ``swap`` or ``look`` requests; return replies in order."""
        pendings: list[Pending[StoredRow]] = [Pending() for _ in rows]
        self.driver_loop.spawn(partial(self.answer, name, rows, pendings))
        return pendings

    def begin(self, work: Work[T]) -> Pending[T]:
        """Start ``work(connection)`` in the driver's loop; its result is the reply.

        Cancelling the caller does not stop it. The reply fails with ``BackendError`` or
        ``ConfigurationError``.
        """
        return submit(self.driver_loop, partial(self._runner.carry, work))

    def run_row_plan(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Run each SQL statement that ``plan`` yields; reply with the plan's result."""

        async def work(connection: Any) -> T:  # noqa: ANN401 - the driver's
            return await run_plan(plan, partial(self.run_row, connection=connection))

        return self.begin(work)

    async def settle_all(
        self,
        pendings: Sequence[Pending[StoredRow]],
        function: Callable[[], Awaitable[Sequence[Outcome]]],
    ) -> Sequence[Outcome]:
        """Await ``function()``; set the replies to its outcomes, or all to its error.

        A reply whose outcome is None is not set. Returns the outcomes. One call into
        the thread of the replies is enough for all of them.
        """
        outcomes: Sequence[Outcome]
        try:
            outcomes = await function()
        except Exception as exc:  # noqa: BLE001 - handed to the callers
            outcomes = (exc,) * len(pendings)
        except asyncio.CancelledError:
            outcomes = (loop_stopped(),) * len(pendings)
            self.driver_loop.tell(_set_results, pendings, outcomes)
            raise
        self.driver_loop.tell(_set_results, pendings, outcomes)
        return outcomes

    async def close(self) -> None:
        """Close the connections, and stop the driver's loop if the store started it."""
        await submit_and_wait(self.driver_loop, self._source.close)
        await self.driver_loop.stop()

    async def answer(
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[StoredRow]]
    ) -> None:
        """Carry out ``swap`` or ``look`` requests; put replies into ``pendings``.

        Runs in the driver's loop. ``rows`` has the parameters of each request.
        """
        renewals: list[Asked] = []
        others: list[list[Asked]] = []
        for one in zip(rows, pendings, strict=True):
            if name == "swap" and _only_renews(one[0]):
                renewals.append(one)
            else:
                others.append([one])
        parts = list(_parts(renewals))
        # A row that stays locked would delay all requests behind it on its connection.
        share = 1 if rows[0].get("wait") else REQUESTS_PER_CONNECTION
        most = len(parts) - (-len(others) // share)
        at_once = min(self._source.at_once, most)
        await answer_in_order(partial(self._answer_part, name), parts + others, at_once)

    async def _answer_part(self, name: str, part: Sequence[Asked]) -> None:
        left = part if len(part) == 1 else await self._renew_together(part)
        for one in left:
            await self._answer(name, one)

    async def _renew_together(self, part: Sequence[Asked]) -> Sequence[Asked]:
        """Send renewals in one transaction; return those to be sent alone."""
        rows, pendings = zip(*part, strict=True)

        async def work(connection: Any) -> Sequence[StoredRow | None]:  # noqa: ANN401 - the driver's
            try:
                return await self.renew(rows, connection)
            except Exception as exc:
                # What refuses one of them must not fail the others.
                if self.driver.is_broken(exc):
                    raise
                return (None,) * len(rows)

        found = await self.settle_all(pendings, partial(self._runner.carry, work))
        return [one for one, row in zip(part, found, strict=True) if row is None]

    async def _answer(self, name: str, asked: Asked) -> None:
        values, pending = asked
        request = partial(self.swap if name == "swap" else self.look, values)
        carry = partial(self._runner.carry, request)
        await settle(self.driver_loop, pending, carry)


class BatchingExecutor:
    """Collects the requests that one thread makes, and sends them in batches."""

    def __init__(
        self, send: Send, soon: Callable[[Callable[[], object]], object]
    ) -> None:
        """Create an executor without requests.

        Args:
            send: Called with ``swap`` or ``look`` and the parameters of each request;
                returns their replies in order.
            soon: Schedules a function in this executor's thread. Called once per batch,
                with the function that sends the batch.
        """
        self._send = send
        self._soon = soon
        self._asked: dict[str, list[tuple[Values, Pending[StoredRow]]]] = {}

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        pending: Pending[StoredRow] = Pending()
        if not self._asked:
            self._soon(self._send_all)
        self._asked.setdefault(name, []).append((values, pending))
        return pending

    def _send_all(self) -> None:
        asked, self._asked = self._asked, {}
        for name, entries in asked.items():
            answers = self._send(name, [values for values, _ in entries])
            alone = len(entries) == 1
            for (values, pending), answer in zip(entries, answers, strict=True):
                answer.add_done_callback(
                    partial(self._answered, name, values, pending, alone)
                )

    def _answered(
        self,
        name: str,
        values: Values,
        pending: Pending[StoredRow],
        alone: bool,  # noqa: FBT001 - bound by ``partial``
        answer: Pending[StoredRow],
    ) -> None:
        error = answer.error
        if error is None:
            pending.set_result(answer.result())
        elif alone or isinstance(error, BackendUnavailable):
            pending.set_exception(error)
        else:
            # One damaged record fails a whole batch at Oracle; asked again alone, the
            # other requests keep their leases.
            again = self._send(name, [values])[0]
            again.add_done_callback(
                partial(self._answered, name, values, pending, True)  # noqa: FBT003
            )


async def answer_in_order(
    answer: Callable[[T], Awaitable[None]], asked: Iterable[T], at_once: int
) -> None:
    """Await ``answer(one)`` for each request, or part, ``at_once`` at a time."""
    # All workers draw from one iterator: a slow request delays its own worker only
    # (test_one_that_is_not_answered_holds_up_its_own_connection_only).
    left = iter(asked)

    async def work() -> None:
        for one in left:
            await answer(one)

    await asyncio.gather(*(work() for _ in range(at_once)))


def _only_renews(values: Values) -> bool:
    """Whether a swap changes no mutex row, notifies no client, and waits for no row."""
    return (
        values.get("wait") == 0.0
        and mutex_change_of(values) == "stay"
        and None not in (values["i_version"], values["i_ticket"])
        and values["n_fence"] is None
        and not (values.get("wakes") or values.get("ear"))
    )


def _parts(renewals: Iterable[Asked]) -> Iterator[list[Asked]]:
    part: list[Asked] = []
    size = 0
    for one in renewals:
        size += len(str(one[0]["n_record"]))
        if len(part) == RENEWALS_PER_COMMIT or size > BYTES_PER_COMMIT:
            yield part
            part, size = [], len(str(one[0]["n_record"]))
        part.append(one)
    if part:
        yield part


def _set_results(
    pendings: Sequence[Pending[StoredRow]], outcomes: Sequence[Outcome]
) -> None:
    for pending, one in zip(pendings, outcomes, strict=True):
        if isinstance(one, Exception):
            pending.set_exception(one)
        elif one is not None:
            pending.set_result(one)


def mutex_change_of(values: Values) -> MutexChange:
    """Return what a swap with these parameters does with the mutex row.

    "stay": nothing, "sit": insert it, "move": update it, "leave": delete it.
    """
    before = values["i_ticket"], values["i_since"]
    after = values["t_ticket"], values["t_since"]
    if before == after:
        return "stay"
    if before[0] is None:
        return "sit"
    return "leave" if after[0] is None else "move"
