"""A Redis store all of whose resources are locked by pairs of keys.

So that whatever tests locks tests those on pairs, too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from aiorwlock_remote import registry
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import KeyPair, Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Renewal,
    RenewerBase,
    Snapshot,
    StoreBase,
    StoreSettings,
    WakeCallback,
)


def on_pair(resource: Resource) -> KeyPair:
    """The pair that stands for a resource."""
    return KeyPair(resource.type, resource.id)


class OnPairs:
    """A ``Backend``; what was ever asked for is what ``scan`` finds."""

    def __init__(self, url: str) -> None:
        self.known: set[Resource] = set()
        self._url = url

    async def open(
        self, host: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        """As ``Backend``."""

        def ring(
            resource: Resource, seconds: float, pushed: PushedGrant | None = None, /
        ) -> None:
            wake(Resource(resource.type, resource.id), seconds, pushed)

        address = parse(self._url)
        opener = registry.find(address.scheme)
        inside = replace(settings, prefix="")  # the types have it in them
        return PairStore(await opener(address, host, ring, inside), self.known)


class PairStore(StoreBase):
    """The store inside, asked for pairs."""

    capabilities: Capability = (
        Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL | Capability.PUSHES
    )

    def __init__(self, inside: StoreBase, known: set[Resource]) -> None:
        super().__init__(inside.event_loop, inside.wake, inside.settings)
        self.poll_policy = inside.poll_policy
        self._inside = inside
        self._known = known

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        self._known.add(resource)
        return self._inside.step(on_pair(resource), command)

    def watch(self, resource: Resource) -> None:
        self._inside.watch(on_pair(resource))

    def unwatch(self, resource: Resource) -> None:
        self._inside.unwatch(on_pair(resource))

    async def look(self, resource: Resource) -> Snapshot:
        return replace(await self._inside.look(on_pair(resource)), resource=resource)

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        for resource in list(self._known):
            if resource_type in (None, resource.type):
                yield await self.look(resource)

    def renewer(self) -> RenewerBase:
        return PairRenewer(self._inside.renewer())

    async def aclose(self) -> None:
        await self._inside.aclose()


class PairRenewer(RenewerBase):
    """The renewer inside, asked for pairs."""

    def __init__(self, inside: RenewerBase) -> None:
        self._inside = inside

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        pairs = [replace(one, resource=on_pair(one.resource)) for one in batch]
        return self._inside.renew(pairs, timeout)

    def close(self) -> None:
        self._inside.close()
