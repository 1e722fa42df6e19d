"""``flaky://``: the memory store behind a link that fails as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field

from aiorwlock_remote.backends import memory
from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import Pace
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import (
    Bell,
    Capability,
    Host,
    Pending,
    Renewal,
    Renewer,
    Settings,
    Snapshot,
)

Fate = str
PASS, REFUSE, LOSE = "pass", "refuse", "lose"
"""Carried out and answered; never arrived; carried out, and the answer lost."""


@dataclass
class Link:
    """What happens to each request, asked once a request."""

    name: str
    fate: Callable[[Command], Fate] = lambda _: PASS
    renewals_fail: bool = False
    hold_back: bool = False
    lane: Callable[[Resource], Hashable] = lambda _: None
    before_renewal: Callable[[Hashable, float], object] = lambda _, __: None
    sent: list[Command] = field(default_factory=list)
    held_back: list[Callable[[], None]] = field(default_factory=list)

    def let_through(self) -> None:
        """Answer what was held back, in order."""
        self.hold_back = False
        held_back, self.held_back = self.held_back, []
        for answer in held_back:
            answer()


links: dict[str, Link] = {}
"""One per URL host; tests look theirs up."""


class FlakyStore:
    """A memory store with a link in front."""

    capabilities = Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL

    def __init__(self, inner: memory.MemoryStore, link: Link, pace: Pace) -> None:
        self.pace = pace
        self._inner = inner
        self._link = link

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Carry out, or not; answer, or not."""
        self._link.sent.append(command)
        fate = self._link.fate(command)
        pending: Pending[Reply] = Pending()
        error = BackendUnavailable(what="the link is down")
        if fate == REFUSE:
            pending.fail(error)
            return pending
        done = self._inner.step(resource, command)

        def answer() -> None:
            if fate == LOSE:
                pending.fail(error)
            else:
                pending.resolve(done.result())

        if self._link.hold_back:
            self._link.held_back.append(answer)
        else:
            answer()
        return pending

    def watch(self, resource: Resource) -> None:
        """As memory does."""
        self._inner.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        """As memory does."""
        self._inner.unwatch(resource)

    async def look(self, resource: Resource) -> Snapshot:
        """As memory does."""
        return await self._inner.look(resource)

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """As memory does."""
        return self._inner.scan(resource_type)

    def renewer(self) -> Renewer:
        """Fails while the link says so."""
        return FlakyRenewer(self._inner.renewer(), self._link)

    async def aclose(self) -> None:
        """As memory does."""
        await self._inner.aclose()


class FlakyRenewer:
    """Renewals over the link."""

    def __init__(self, inner: Renewer, link: Link) -> None:
        self._inner = inner
        self._link = link

    def lane(self, resource: Resource) -> Hashable:
        """As the link says."""
        return self._link.lane(resource)

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew, or fail; perhaps after a while."""
        self._link.before_renewal(self._link.lane(batch[0].resource), timeout)
        if self._link.renewals_fail:
            raise BackendUnavailable(what="the link is down")
        return self._inner.renew(batch, timeout)

    def close(self) -> None:
        """As memory does."""
        self._inner.close()


async def open_store(
    address: Address, host: Host, bell: Bell, settings: Settings
) -> FlakyStore:
    """``flaky://name``, with ``links[name]``; polls every 20 ms."""
    inner = await memory.open_store(
        Address("memory", address.host), host, bell, settings
    )
    pace = Pace(poll_min=0.02, poll_max=0.03, place_life=1.0, claim_window=0.05)
    return FlakyStore(inner, links[address.host], pace)
