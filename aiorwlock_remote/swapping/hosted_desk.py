"""A desk whose requests a driver carries, over connections that live on a side."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from aiorwlock_remote._util.driver_loop import Side, handed, outcome
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.driver.pool import Lines
from aiorwlock_remote.cas.table_rows import Found
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.swapping.carrying import Carrier, Custom
from aiorwlock_remote.swapping.tables import Values

EACH = 32
"""Requests asked for together, for each connection that they go over."""

T = TypeVar("T")
Work = Callable[[Any], Awaitable[T]]
Seat = Literal["sit", "move", "leave", "stay"]


class Closing(Protocol):
    """Connections."""

    async def close(self) -> None:
        """Close those that are ours."""


class HostedDesk(ABC):
    """Requests of one thread or loop."""

    def __init__(self, side: Side, lines: Closing, where: str) -> None:
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
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[Found]]
    ) -> None:
        """Carry these requests and tell all who wait; on the side."""

    def ask(self, name: str, values: Values) -> Pending[Found]:
        """As ``Desk.ask``."""
        return self.ask_all(name, [values])[0]

    def ask_all(self, name: str, rows: Sequence[Values]) -> list[Pending[Found]]:
        """Several of one kind: ``answer`` carries them."""
        pendings: list[Pending[Found]] = [Pending() for _ in rows]
        self._side.spawn(partial(self.answer, name, rows, pendings))
        return pendings

    def begin(self, work: Work[T]) -> Pending[T]:
        """What it makes of a connection, beyond any caller's cancellation.

        Fails as ``carry`` does.
        """
        return handed(self._side, partial(self.carry, work))

    async def close(self) -> None:
        """Close the connections, and the side if it is our own."""
        await outcome(self._side, self._closing.close)
        await self._side.stop()

    def ended(self) -> BackendUnavailable:
        """What those are told who still wait when the loop ends."""
        return BackendUnavailable(what=f"{self._where}: the loop ended")


class EachDesk(HostedDesk):
    """Each request has its own outcome."""

    def __init__(
        self,
        side: Side,
        lines: Lines[Any],
        custom: Custom[Any],
        where: str,
        seconds: float,
    ) -> None:
        """``lines`` live on ``side``. ``seconds``: for a request, at most."""
        super().__init__(side, lines, where)
        self._at_once = lines.at_once
        self._carrier = Carrier(lines, custom, where, seconds)

    async def carry(self, work: Work[T]) -> T:
        """As ``HostedDesk.carry``."""
        return await self._carrier.carry(work)

    def ask(self, name: str, values: Values) -> Pending[Found]:
        """As ``Desk.ask``."""
        pending: Pending[Found] = Pending()
        # No ``Lines`` and no driver asks whose task it is before there is something to
        # wait for: what may connect does so in tasks of its own.
        self._side.begin(partial(self._answer, name, values, pending))
        return pending

    @abstractmethod
    async def swapped(self, values: Values, connection: Any) -> Found:  # noqa: ANN401 - the driver's
        """One ``swap``; a refused one tells what stands there."""

    @abstractmethod
    async def looked(self, values: Values, connection: Any) -> Found:  # noqa: ANN401
        """One ``look``."""

    async def answer(
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[Found]]
    ) -> None:
        """One after the other; many, over some connections at a time.

        So are all that may wait for a row which somebody keeps locked.
        """
        each = 1 if rows[0].get("wait") else EACH
        some = min(self._at_once, -(-len(rows) // each))
        await in_turn(partial(self._answer, name), rows, pendings, some)

    async def _answer(self, name: str, values: Values, pending: Pending[Found]) -> None:
        asked = self.swapped if name == "swap" else self.looked
        try:
            found = await self._carrier.carry(partial(asked, values))
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            self._side.tell(pending.fail, exc)
        except asyncio.CancelledError:  # the loop ends
            self._side.tell(pending.fail, self.ended())
            raise
        else:
            self._side.tell(pending.resolve, found)


async def in_turn(
    answer: Callable[[Values, Pending[Found]], Awaitable[None]],
    rows: Sequence[Values],
    pendings: Sequence[Pending[Found]],
    at_once: int,
) -> None:
    """Answer each request in their order, ``at_once`` of them at a time."""
    left = iter(list(zip(rows, pendings, strict=True)))

    async def work() -> None:
        for values, pending in left:
            await answer(values, pending)

    await asyncio.gather(*(work() for _ in range(at_once)))


def seat_of(values: Values) -> Seat:
    """What a swap does with the seat."""
    before = values["i_ticket"], values["i_since"]
    after = values["t_ticket"], values["t_since"]
    if before == after:
        return "stay"
    if before[0] is None:
        return "sit"
    return "leave" if after[0] is None else "move"
