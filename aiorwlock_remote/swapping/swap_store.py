"""What all stores whose steps are swaps have in common: how they are waited for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio

from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import Pace
from aiorwlock_remote.pending import Pending, UnderWay
from aiorwlock_remote.ports import Bell, Capability, Host, Settings
from aiorwlock_remote.swapping.watcher import Looks, Watcher


class SwapStore:
    """Waiters poll by plain reads. A subclass makes ``_watcher`` of its own reads."""

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    # What is polled here is the watcher's business: this only keeps places alive, by a
    # swap each time.
    pace: Pace = Pace(
        poll_min=1.5, poll_max=2.0, place_life=6.0, claim_window=0.5, sees_ends=True
    )

    looks: Looks = Looks()

    _watcher: Watcher

    def __init__(self, host: Host, bell: Bell, settings: Settings) -> None:
        """Of the loop of ``host``."""
        self._host = host
        self._bell = bell
        self._settings = settings
        self._under_way: UnderWay = UnderWay()
        self._last: dict[Resource, Pending[Reply]] = {}  # of those under way

    def watch(self, resource: Resource) -> None:
        """Ring when it may be free for us."""
        self._watcher.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._watcher.unwatch(resource)

    def _begun(self, resource: Resource, stepped: Pending[Reply]) -> Pending[Reply]:
        """The same, waited for by those who look, and by ``aclose``."""
        self._last[resource] = stepped
        stepped.then(partial(self._over, resource))
        return self._under_way.add(stepped)

    async def _answered(self, resource: Resource) -> None:
        """All that has been asked for here: each resource's steps are taken in turn."""
        last = self._last.get(resource)
        if last is not None:
            heard = anyio.Event()
            last.then(lambda _: heard.set())
            await heard.wait()

    def _over(self, resource: Resource, stepped: Pending[Reply]) -> None:
        if self._last.get(resource) is stepped:
            del self._last[resource]

    def _wakes(self, resource: Resource, gates: tuple[str, ...]) -> None:
        if self._settings.gate in gates:
            self._bell(resource, 0.0)

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        async def after() -> None:
            await anyio.sleep(seconds)
            function()

        self._host.spawn(after)
