"""A store behind a link that fails as it is told: refused, lost and late answers."""

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

    ``PASS``: carried out and answered. ``REFUSE``: it never arrived. ``LOSE``: carried
    out, and the answer lost. ``FORBID``: the store says that we have no right to do it.
    ``FAIL_LATE``: carried out, and the store says that it failed: a right was missing,
    or a record damaged, after what counts was written. ``DECLINE``: not carried out,
    and the store says so; it may be the next time.
    """

    PASS = auto()
    REFUSE = auto()
    LOSE = auto()
    FORBID = auto()
    FAIL_LATE = auto()
    DECLINE = auto()


def _pass(_: Command) -> Fate:
    return Fate.PASS


def _one_lane(_: Resource) -> Hashable:
    return None


def _at_once(_: Hashable, __: float) -> object:
    return None


def _nothing() -> object:
    return None


@final
@dataclass(eq=False)
class FaultyLink:
    """What happens to each request; asked at each, so that it may change any time.

    ``down``: nothing arrives. ``fate``: of each command. ``hold_back``: commands are
    carried out, and their answers kept until ``let_through``. ``renewals_fail``: those
    of the keeper. ``before_renewal`` is called in the keeper's thread with the lane and
    the seconds it has; it may wait, or raise. ``give_up`` is called when what waits
    there is not waited for any more. ``lane``: over which of several connections a
    resource is renewed. ``sent``: all commands, also those that failed.
    """

    down: bool = False
    fate: Callable[[Command], Fate] = _pass
    hold_back: bool = False
    renewals_fail: bool = False
    lane: Callable[[Resource], Hashable] = _one_lane
    before_renewal: Callable[[Hashable, float], object] = _at_once
    give_up: Callable[[], object] = _nothing
    sent: list[Command] = field(default_factory=list[Command])
    _held_back: list[Callable[[], None]] = field(
        default_factory=list[Callable[[], None]], repr=False
    )

    @property
    def held_back(self) -> int:
        """How many answers wait for ``let_through``."""
        return len(self._held_back)

    def let_through(self) -> None:
        """Answer what was held back, in order."""
        self.hold_back = False
        held_back, self._held_back = self._held_back, []
        for answer in held_back:
            answer()

    def carry(
        self, do: Callable[[], Pending[Reply]], command: Command
    ) -> Pending[Reply]:
        """Do it, or not; answer, or not, or later."""
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

        if self.hold_back:
            self._held_back.append(lambda: done.add_done_callback(answer))
        else:
            done.add_done_callback(answer)
        return pending

    def check(self) -> None:
        """Whether what only reads arrives.

        Raises:
            BackendUnavailable: it does not.
        """
        if self.down:
            raise _unavailable()


def _unavailable() -> BackendUnavailable:
    return BackendUnavailable(what="the link is down")


def _forbidden() -> Unsupported:
    return Unsupported(what="no right", nothing_done=True)


def _declined() -> BackendUnavailable:
    return BackendUnavailable(what="not now", nothing_done=True)


_NOT_DONE: dict[Fate, Callable[[], BackendError]] = {
    Fate.REFUSE: _unavailable,
    Fate.FORBID: _forbidden,
    Fate.DECLINE: _declined,
}


@final
class FaultyStore:
    """Any store, with a link in front. Recipes with ports of their own it has not."""

    def __init__(
        self,
        inner: Store,
        link: FaultyLink,
        host: EventLoop,
        bell: WakeCallback,
        pace: PollPolicy | None = None,
    ) -> None:
        """``host`` and ``bell`` as ``inner`` got them; ``pace``: another than its."""
        self.capabilities: Capability = inner.capabilities
        self.pace: PollPolicy = pace or inner.pace
        self._inner = inner
        self._link = link
        self._host = host
        self._bell = bell
        self._watched: set[Resource] = set()

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """As the link says."""
        return self._link.carry(lambda: self._inner.step(resource, command), command)

    def watch(self, resource: Resource) -> None:
        """As inside."""
        self._watched.add(resource)
        self._inner.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        """As inside."""
        self._watched.discard(resource)
        self._inner.unwatch(resource)

    def wake(self) -> None:
        """Whoever waits is to ask again now: the store or the link has changed."""
        for resource in self._watched:
            self._host.call_soon(self._bell, resource, 0.0)

    async def look(self, resource: Resource) -> Snapshot:
        """As inside, unless the link is down."""
        self._link.check()
        return await self._inner.look(resource)

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """As inside, unless the link is down."""
        self._link.check()
        async for snapshot in self._inner.scan(resource_type):
            yield snapshot

    def renewer(self) -> Renewer:
        """Fails while the link says so."""
        return FaultyRenewer(self._inner.renewer(), self._link)

    async def aclose(self) -> None:
        """As inside."""
        await self._inner.aclose()


@final
class FaultyRenewer:
    """Renewals over the link."""

    def __init__(self, inner: Renewer, link: FaultyLink) -> None:
        """As the link says."""
        self._inner = inner
        self._link = link

    def lane(self, resource: Resource) -> Hashable:
        """As the link says, or as inside."""
        lane = self._link.lane(resource)
        if lane is None and isinstance(self._inner, ParallelRenewer):
            return self._inner.lane(resource)
        return lane

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew, or fail; perhaps after a while."""
        self._link.before_renewal(self._link.lane(batch[0].resource), timeout)
        if self._link.down or self._link.renewals_fail:
            raise _unavailable()
        return self._inner.renew(batch, timeout)

    def give_up(self) -> None:
        """As the link does, and as inside."""
        self._link.give_up()
        if isinstance(self._inner, AbortableRenewer):
            self._inner.give_up()

    def close(self) -> None:
        """As inside."""
        self._inner.close()
