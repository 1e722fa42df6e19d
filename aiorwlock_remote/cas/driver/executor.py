"""The keeper's desk: what is asked together goes together.

A desk whose requests a driver carries, over connections that live on a side.

Requests over connections of our own or the user's. All in one asyncio loop.

No call of ours is ever cancelled, and each has a bounded wait: when it is over the
connection is hung up, which ends the call, and what became of it is not known.

One timer for all calls that may take as long.

One for each is dear: a loop keeps, in order, also those that were cancelled, until
their time has come or until they are most of what it keeps.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from aiorwlock_remote._util.driver_loop import DriverLoop, submit, submit_and_wait
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.driver.external_pool import (
    ConnectionOptions,
    ExternalPool,
    borrowing,
)
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.table_cas import Values
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError

C = TypeVar("C")


class CallTimeouts(Generic[C]):
    """Ends connections whose calls are not over in time. All in one asyncio loop."""

    def __init__(self, seconds: float, end: Callable[[C], object]) -> None:
        """``end``: called at once; it ends what is under way, too."""
        self._seconds = seconds
        self._end = end
        self._due: dict[C, float] = {}  # in order: all may take as long
        self._timed = False

    def begin(self, connection: C) -> None:
        """A call begins, the only one there."""
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self._seconds
        self._time(loop)

    def missed(self, connection: C) -> bool:
        """Whether its call took too long."""
        return connection not in self._due

    def cancel(self, connection: C) -> None:
        """Its call is."""
        self._due.pop(connection, None)

    def _time(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the first one is looked at when its time has come."""
        if self._due and not self._timed:
            self._timed = True
            loop.call_at(next(iter(self._due.values())), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timed = False
        now = loop.time()
        late = next((at for at, due in self._due.items() if due <= now), None)
        if late is None:
            self._time(loop)
            return
        del self._due[late]
        self._time(loop)  # first: whatever comes of this one, others are looked at
        self._end(late)


Failure = BackendError | ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True)
class DriverHooks(Generic[C]):
    """How a driver's connections are, and end.

    ``healthy``: as far as is known without asking. ``abort``: at once; the call under
    way ends with an error. ``spoilt``: whether an error leaves a connection that is not
    to be used again. ``meant``: the error of ours for what was raised by a request;
    ``not_connected``: for what was raised before there was a connection.
    """

    is_healthy: Callable[[C], bool]
    abort: Callable[[C], object]
    is_broken: Callable[[BaseException], bool]
    map_error: Callable[[BaseException, str], Failure]
    not_connected: Callable[[BaseException, str], Failure]


class PooledRunner(Generic[C]):
    """Each request has a connection for itself while it is carried."""

    def __init__(
        self,
        lines: ConnectionSource[C],
        custom: DriverHooks[C],
        where: str,
        seconds: float,
    ) -> None:
        """``where``: the server, for messages. ``seconds``: for a call, at most."""
        self._lines = lines
        self._custom = custom
        self._where = where
        self._deadlines = CallTimeouts(seconds, custom.abort)

    async def carry(self, work: Callable[[C], Awaitable[T]]) -> T:
        """What ``work`` makes of a connection.

        Raises:
            BackendError, ConfigurationError: what the driver's errors mean.
        """
        custom, spoilt = self._custom, False
        try:
            connection = await self._lines.take()
        except (BackendError, ConfigurationError):
            raise
        except Exception as exc:
            raise custom.not_connected(exc, self._where) from exc
        self._deadlines.begin(connection)
        try:
            return await work(connection)
        except Exception as exc:
            spoilt = custom.is_broken(exc)
            if spoilt and self._deadlines.missed(connection):
                what = f"{self._where} does not answer"
                raise BackendUnavailable(what=what) from exc
            raise custom.map_error(exc, self._where) from exc
        except BaseException:  # the loop is about to end
            spoilt = True
            raise
        finally:
            self._deadlines.cancel(connection)
            if spoilt or not custom.is_healthy(connection):
                await self._lines.drop(connection)
            else:
                await self._lines.give_back(connection)


async def run_in_sequence(
    lender: ExternalPool[C],
    reach: ConnectionOptions,
    custom: DriverHooks[C],
    works: Iterable[Callable[[C], Awaitable[object]]],
) -> None:
    """One after the other, over what a user lends. Cancelled, one under way goes on.

    Raises:
        BackendError, ConfigurationError: as ``PooledRunner.carry``.
    """
    async with borrowing(lender, reach) as lines:
        carrier = PooledRunner(lines, custom, reach.where, reach.call_timeout)
        for work in works:
            await asyncio.shield(carrier.carry(work))


Send = Callable[[str, Sequence[Values]], list[Pending[StoredRow]]]
Soon = Callable[[Callable[[], object]], object]


class BatchingExecutor:
    """A ``Desk`` that hands over together what was asked for. Belongs to one thread."""

    def __init__(self, send: Send, soon: Soon) -> None:
        """``send``: takes several of one kind. ``soon``: once all have asked."""
        self._send = send
        self._soon = soon
        self._asked: dict[str, list[tuple[Values, Pending[StoredRow]]]] = {}

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """As ``Desk.ask``."""
        pending: Pending[StoredRow] = Pending()
        if not self._asked:
            self._soon(self._go)
        self._asked.setdefault(name, []).append((values, pending))
        return pending

    def _go(self) -> None:
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
        else:  # one damaged record must not cost the others their leases
            again = self._send(name, [values])[0]
            again.add_done_callback(
                partial(self._answered, name, values, pending, True)  # noqa: FBT003
            )


REQUESTS_PER_CONNECTION = 32
"""Requests asked for together, for each connection that they go over."""

Work = Callable[[Any], Awaitable[T]]
MutexChange = Literal["sit", "move", "leave", "stay"]


class Closeable(Protocol):
    """Connections."""

    async def close(self) -> None:
        """Close those that are ours."""


class DriverExecutor(ABC):
    """Requests of one thread or loop."""

    def __init__(self, side: DriverLoop, lines: Closeable, where: str) -> None:
        """``lines`` live on ``side``. ``where``: the server, for messages."""
        self._side = side
        self._closing = lines
        self._where = where

    @abstractmethod
    async def carry(self, work: Work[T]) -> T:
        """What it makes of a connection; on the side.

        Raises:
            BackendError, ConfigurationError: what the driver's errors mean.
        """

    @abstractmethod
    async def answer(
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[StoredRow]]
    ) -> None:
        """Carry these requests and tell all who wait; on the side."""

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """As ``Desk.ask``."""
        return self.ask_all(name, [values])[0]

    def ask_all(self, name: str, rows: Sequence[Values]) -> list[Pending[StoredRow]]:
        """Several of one kind: ``answer`` carries them."""
        pendings: list[Pending[StoredRow]] = [Pending() for _ in rows]
        self._side.spawn(partial(self.answer, name, rows, pendings))
        return pendings

    def begin(self, work: Work[T]) -> Pending[T]:
        """What it makes of a connection, beyond any caller's cancellation.

        Fails as ``carry`` does.
        """
        return submit(self._side, partial(self.carry, work))

    async def close(self) -> None:
        """Close the connections, and the side if it is our own."""
        await submit_and_wait(self._side, self._closing.close)
        await self._side.stop()

    def ended(self) -> BackendUnavailable:
        """What those are told who still wait when the loop ends."""
        return BackendUnavailable(what=f"{self._where}: the loop ended")


class PerCallExecutor(DriverExecutor):
    """Each request has its own outcome."""

    def __init__(
        self,
        side: DriverLoop,
        lines: ConnectionSource[Any],
        custom: DriverHooks[Any],
        where: str,
        seconds: float,
    ) -> None:
        """``lines`` live on ``side``. ``seconds``: for a request, at most."""
        super().__init__(side, lines, where)
        self._at_once = lines.at_once
        self._carrier = PooledRunner(lines, custom, where, seconds)

    async def carry(self, work: Work[T]) -> T:
        """As ``DriverExecutor.carry``."""
        return await self._carrier.carry(work)

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """As ``Desk.ask``."""
        pending: Pending[StoredRow] = Pending()
        # No ``ConnectionSource`` and no driver asks whose task it is before there is
        # something to wait for: what may connect does so in tasks of its own.
        self._side.begin(partial(self._answer, name, values, pending))
        return pending

    @abstractmethod
    async def swapped(self, values: Values, connection: Any) -> StoredRow:  # noqa: ANN401 - the driver's
        """One ``swap``; a refused one tells what stands there."""

    @abstractmethod
    async def looked(self, values: Values, connection: Any) -> StoredRow:  # noqa: ANN401
        """One ``look``."""

    async def answer(
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[StoredRow]]
    ) -> None:
        """One after the other; many, over some connections at a time.

        So are all that may wait for a row which somebody keeps locked.
        """
        each = 1 if rows[0].get("wait") else REQUESTS_PER_CONNECTION
        some = min(self._at_once, -(-len(rows) // each))
        await answer_in_order(partial(self._answer, name), rows, pendings, some)

    async def _answer(
        self, name: str, values: Values, pending: Pending[StoredRow]
    ) -> None:
        asked = self.swapped if name == "swap" else self.looked
        try:
            found = await self._carrier.carry(partial(asked, values))
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            self._side.tell(pending.set_exception, exc)
        except asyncio.CancelledError:  # the loop ends
            self._side.tell(pending.set_exception, self.ended())
            raise
        else:
            self._side.tell(pending.set_result, found)


async def answer_in_order(
    answer: Callable[[Values, Pending[StoredRow]], Awaitable[None]],
    rows: Sequence[Values],
    pendings: Sequence[Pending[StoredRow]],
    at_once: int,
) -> None:
    """Answer each request in their order, ``at_once`` of them at a time."""
    left = iter(list(zip(rows, pendings, strict=True)))

    async def work() -> None:
        for values, pending in left:
            await answer(values, pending)

    await asyncio.gather(*(work() for _ in range(at_once)))


def mutex_change_of(values: Values) -> MutexChange:
    """What a swap does with the seat."""
    before = values["i_ticket"], values["i_since"]
    after = values["t_ticket"], values["t_since"]
    if before == after:
        return "stay"
    if before[0] is None:
        return "sit"
    return "leave" if after[0] is None else "move"
