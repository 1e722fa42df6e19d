"""What all stores whose steps are swaps have in common: how they are waited for."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.poller import PollIntervals, StatePoller
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.ports import Capability, EventLoop, StoreSettings, WakeCallback


class CasLockStore:
    """Waiters poll by plain reads, unless a subclass has a way to tell them.

    A subclass makes ``_steps`` of its own swaps, and ``_watcher`` of its own reads.
    """

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    # What is polled here is the watcher's business: this only keeps places alive, by a
    # swap each time.
    pace: PollPolicy = PollPolicy(
        poll_min=1.5, poll_max=2.0, entry_ttl=6.0, claim_window=0.5, sees_ends=True
    )

    looks: PollIntervals = PollIntervals()

    _steps: CasStepper
    _watcher: StatePoller

    def __init__(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> None:
        """Of the loop of ``host``."""
        self._host = host
        self._bell = bell
        self._settings = settings

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """One swap, or a few where others change the resource at the same time."""
        return self._steps.step(resource, command)

    def watch(self, resource: Resource) -> None:
        """Ring when it may be free for us."""
        self._watcher.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._watcher.unwatch(resource)

    async def _over(self) -> None:
        """Wait until nothing is under way, not even what came of another."""
        while unanswered := self._steps.unanswered():
            for resource in unanswered:
                await self._steps.answered(resource)

    def _wakes(self, resource: Resource, gates: tuple[str, ...]) -> None:
        if self._settings.client_id in gates:
            self._bell(resource, 0.0)

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        async def after() -> None:
            await anyio.sleep(seconds)
            function()

        self._host.spawn(after)
