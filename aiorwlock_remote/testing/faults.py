"""Fault injection: a store whose requests and replies can fail, vanish or wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import final

from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.ports import (
    BEYOND_LOCKS,
    Capability,
    EventLoop,
    Pending,
    Renewal,
    RenewerBase,
    Snapshot,
    StoreBase,
    WakeCallback,
)


class Fate(Enum):
    """What a ``FaultyLink`` does with one command.

    ``PASS``: the command is carried out and answered. ``REFUSE``: the command never
    reaches the store. ``LOSE``: the command is carried out, but its reply is lost.
    ``FORBID``: not carried out, for lack of a right. ``FAIL_LATE``: carried out, and
    then reported as failed, as if a right were missing after the essential writes.
    ``DECLINE``: not carried out; the store replies that it is unavailable for now.
    """

    PASS = auto()
    REFUSE = auto()
    LOSE = auto()
    FORBID = auto()
    FAIL_LATE = auto()
    DECLINE = auto()


Tell = Callable[[PushedGrant | None], object]
"""Passes a wake-up on: with the grant that its message names, or None."""


@final
@dataclass(eq=False)
class FaultyLink:
    """Faults of the connection to a ``FaultyStore``; attributes may change at any time.

    Attributes:
        down: If True, no request reaches the store.
        fate: Called with each command; returns its ``Fate``.
        hold_back: If True, commands are carried out, and their replies wait for
            ``let_through``.
        renewals_fail: If True, renewals fail with ``BackendUnavailable``.
        lane: Called with a resource; returns a key. One thread renews all resources of
            one key. If it returns None, the inner store chooses the key.
        before_renewal: Called in the renewing thread before each request, with what
            ``lane`` returned and the timeout in seconds; may wait or raise.
        give_up: Called in any thread to end a ``before_renewal`` that waits.
        hear: Called in the loop with each wake-up of the store: the grant that its
            message names, or None, and a function that passes a wake-up on. That may be
            called now or later, several times or never, with any message. If None,
            wake-ups pass; while the link is ``down``, they name no grant.
        sent: All commands, also those that failed.
    """

    down: bool = False
    fate: Callable[[Command], Fate] = lambda _: Fate.PASS
    hold_back: bool = False
    renewals_fail: bool = False
    lane: Callable[[Resource], Hashable] = lambda _: None
    before_renewal: Callable[[Hashable, float], object] = lambda _, __: None
    give_up: Callable[[], object] = lambda: None
    hear: Callable[[PushedGrant | None, Tell], object] | None = None
    sent: list[Command] = field(default_factory=list[Command])
    _held_back: list[Callable[[], None]] = field(
        default_factory=list[Callable[[], None]], repr=False
    )

    def hearing(self, wake: WakeCallback) -> WakeCallback:
        """Return the callback to open the inner store with, so that ``hear`` decides
        which wake-ups reach ``wake``.
        """

        def heard(
            resource: Resource, seconds: float, pushed: PushedGrant | None = None, /
        ) -> None:
            if self.hear is not None:
                self.hear(pushed, partial(wake, resource, seconds))
            else:
                wake(resource, seconds, None if self.down else pushed)

        return heard

    @property
    def held_back(self) -> int:
        """Number of replies that wait for ``let_through``."""
        return len(self._held_back)

    def let_through(self) -> None:
        """Stop holding back replies; deliver those held back, in order."""
        self.hold_back = False
        held_back, self._held_back = self._held_back, []
        for answer in held_back:
            answer()

    def carry(
        self, do: Callable[[], Pending[Reply]], command: Command
    ) -> Pending[Reply]:
        """Return the reply to a command, which may fail, or come later, or never.

        Calls ``do``, which sends the command to the store, unless ``down`` or the fate
        of the command forbids. Records the command in ``sent``.
        """
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
        """Raise ``BackendUnavailable`` if the link is down."""
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
class FaultyStore(StoreBase):
    """Store that passes each request through a ``FaultyLink`` to an inner store.

    It supports locks only: no groups of interchangeable mutexes, no row locks, no
    occupied objects. Pass the event loop and the wake callback with which ``inner`` was
    opened, or of which ``FaultyLink.hearing`` made that callback. ``poll_policy``: in
    place of that of ``inner``.
    """

    def __init__(
        self,
        inner: StoreBase,
        link: FaultyLink,
        loop: EventLoop,
        wake: WakeCallback,
        poll_policy: PollPolicy | None = None,
    ) -> None:
        super().__init__(loop, wake, inner.settings)
        self.capabilities: Capability = inner.capabilities & ~BEYOND_LOCKS
        self.poll_policy: PollPolicy = poll_policy or inner.poll_policy
        self._inner = inner
        self._link = link
        self._watched: set[Resource] = set()

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        return self._link.carry(lambda: self._inner.step(resource, command), command)

    def watch(self, resource: Resource) -> None:
        self._watched.add(resource)
        self._inner.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        self._watched.discard(resource)
        self._inner.unwatch(resource)

    def wake_all(self) -> None:
        """Wake the waiters of all watched resources, as the store or link changed."""
        for resource in self._watched:
            self.event_loop.call_soon(self.wake, resource, 0.0)

    async def look(self, resource: Resource) -> Snapshot:
        self._link.check()
        return await self._inner.look(resource)

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        self._link.check()
        async with aclosing(self._inner.scan(resource_type)) as found:
            async for snapshot in found:
                yield snapshot

    def renewer(self) -> RenewerBase:
        return FaultyRenewer(self._inner.renewer(), self._link)

    async def aclose(self) -> None:
        await self._inner.aclose()


@final
class FaultyRenewer(RenewerBase):
    """Renews leases by ``inner``, unless the link is down or lets renewals fail."""

    def __init__(self, inner: RenewerBase, link: FaultyLink) -> None:
        self._inner = inner
        self._link = link

    def lane(self, resource: Resource) -> Hashable:
        lane = self._link.lane(resource)
        return self._inner.lane(resource) if lane is None else lane

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        self._link.before_renewal(self._link.lane(batch[0].resource), timeout)
        if self._link.down or self._link.renewals_fail:
            raise _unavailable()
        return self._inner.renew(batch, timeout)

    def give_up(self) -> None:
        self._link.give_up()
        self._inner.give_up()

    def close(self) -> None:
        self._inner.close()
