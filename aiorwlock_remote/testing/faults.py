"""A store behind a faulty link: refused requests, lost and late replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import final

from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.ports import (
    AbortableRenewer,
    Capability,
    EventLoop,
    ParallelRenewer,
    Pending,
    Renewal,
    Renewer,
    Snapshot,
    Store,
    WakeCallback,
)


class Fate(Enum):
    """What becomes of a command.

    ``PASS``: carried out and answered. ``REFUSE``: never arrived. ``LOSE``: carried
    out, the reply lost. ``FORBID``: not carried out, for lack of a right.
    ``FAIL_LATE``: carried out, and then the store reports a failure, as if a right were
    missing after what counts was written. ``DECLINE``: not carried out; the store says
    so, and may accept the next one.
    """

    PASS = auto()
    REFUSE = auto()
    LOSE = auto()
    FORBID = auto()
    FAIL_LATE = auto()
    DECLINE = auto()


@final
@dataclass(eq=False)
class FaultyLink:
    """The fate of each request; attributes may change at any time.

    Attributes:
        down: No request arrives.
        fate: The fate of each command.
        hold_back: Commands are carried out, and their replies kept for ``let_through``.
        renewals_fail: Renewals fail.
        lane: The connection over which a resource is renewed.
        before_renewal: Called in the renewal thread with the lane and the seconds it
            has; may wait or raise.
        give_up: Called when a renewal that waits there is abandoned.
        sent: All commands, also those that failed.
    """

    down: bool = False
    fate: Callable[[Command], Fate] = lambda _: Fate.PASS
    hold_back: bool = False
    renewals_fail: bool = False
    lane: Callable[[Resource], Hashable] = lambda _: None
    before_renewal: Callable[[Hashable, float], object] = lambda _, __: None
    give_up: Callable[[], object] = lambda: None
    sent: list[Command] = field(default_factory=list[Command])
    _held_back: list[Callable[[], None]] = field(
        default_factory=list[Callable[[], None]], repr=False
    )

    @property
    def held_back(self) -> int:
        """Number of replies that wait for ``let_through``."""
        return len(self._held_back)

    def let_through(self) -> None:
        """Deliver the replies held back, in order."""
        self.hold_back = False
        held_back, self._held_back = self._held_back, []
        for answer in held_back:
            answer()

    def carry(
        self, do: Callable[[], Pending[Reply]], command: Command
    ) -> Pending[Reply]:
        """Carry the command out or fail it; deliver the reply now, later or never."""
        self.sent.append(command)
        fate = Fate.REFUSE if self.down else self.fate(command)
        pending: Pending[Reply] = Pending()
        if fate in _NOT_DONE:
            pending.set_exception(_NOT_DONE[fate]())
            return pending
        done = do()

        def answer(done: Pending[Reply]) -> None:
            if fate is Fate.LOSE:
                pending.set_exception(_unavailable())
            elif fate is Fate.FAIL_LATE:
                pending.set_exception(Unsupported(what="a right is missing at the end"))
            elif done.error is not None:
                pending.set_exception(done.error)
            else:
                pending.set_result(done.result())

        # The callback is attached later, so that replies come in the order of
        # ``let_through`` even if they were ready before.
        if self.hold_back:
            self._held_back.append(lambda: done.add_done_callback(answer))
        else:
            done.add_done_callback(answer)
        return pending

    def check(self) -> None:
        """Refuse a request that only reads, while the link is down.

        Raises:
            BackendUnavailable: The link is down.
        """
        if self.down:
            raise _unavailable()


def _unavailable() -> BackendUnavailable:
    return BackendUnavailable(what="the link is down")


_NOT_DONE: dict[Fate, Callable[[], BackendError]] = {
    Fate.REFUSE: _unavailable,
    Fate.FORBID: lambda: Unsupported(what="no right", nothing_done=True),
    Fate.DECLINE: lambda: BackendUnavailable(what="not now", nothing_done=True),
}


@final
class FaultyStore:
    """Any store behind a link. It has the ports of locks, and none of recipes.

    ``host`` and ``bell`` are those of ``inner``; ``pace`` replaces the pace of
    ``inner``.
    """

    def __init__(
        self,
        inner: Store,
        link: FaultyLink,
        host: EventLoop,
        bell: WakeCallback,
        pace: PollPolicy | None = None,
    ) -> None:
        self.capabilities: Capability = inner.capabilities
        self.pace: PollPolicy = pace or inner.pace
        self._inner = inner
        self._link = link
        self._host = host
        self._bell = bell
        self._watched: set[Resource] = set()

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        return self._link.carry(lambda: self._inner.step(resource, command), command)

    def watch(self, resource: Resource) -> None:
        self._watched.add(resource)
        self._inner.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        self._watched.discard(resource)
        self._inner.unwatch(resource)

    def wake(self) -> None:
        """Wake all waiters: the store or the link has changed."""
        for resource in self._watched:
            self._host.call_soon(self._bell, resource, 0.0)

    async def look(self, resource: Resource) -> Snapshot:
        self._link.check()
        return await self._inner.look(resource)

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        self._link.check()
        async for snapshot in self._inner.scan(resource_type):
            yield snapshot

    def renewer(self) -> Renewer:
        return FaultyRenewer(self._inner.renewer(), self._link)

    async def aclose(self) -> None:
        await self._inner.aclose()


@final
class FaultyRenewer:
    """A renewer whose renewals go over the link."""

    def __init__(self, inner: Renewer, link: FaultyLink) -> None:
        self._inner = inner
        self._link = link

    def lane(self, resource: Resource) -> Hashable:
        lane = self._link.lane(resource)
        if lane is None and isinstance(self._inner, ParallelRenewer):
            return self._inner.lane(resource)
        return lane

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        self._link.before_renewal(self._link.lane(batch[0].resource), timeout)
        if self._link.down or self._link.renewals_fail:
            raise _unavailable()
        return self._inner.renew(batch, timeout)

    def give_up(self) -> None:
        self._link.give_up()
        if isinstance(self._inner, AbortableRenewer):
            self._inner.give_up()

    def close(self) -> None:
        self._inner.close()
