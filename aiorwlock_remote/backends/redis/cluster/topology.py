"""Learns the map of a cluster from whichever node answers.

When the map of a cluster is asked for again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio

from aiorwlock_remote.backends.redis.addresses import Server, shown
from aiorwlock_remote.backends.redis.cluster.nodes import NodeConnection, NodePool
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap
from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import EventLoop

NODE_TIMEOUT = 1.0
"""Seconds for one node to answer, while others may."""

T = TypeVar("T")
Failure = BackendError | ConfigurationError


class Discovery:
    """Asks CLUSTER SLOTS: one node at a time, those we are connected to first."""

    def __init__(
        self,
        options: Options,
        slots: SlotMap,
        nodes: NodePool,
        adopt: Callable[[], object],
    ) -> None:
        """Nothing is known yet. ``adopt()`` is called whenever a map was learnt: before
        anything is sent by it.
        """
        self._adopt = adopt
        self._options = options
        self._slots = slots
        self._nodes = nodes

    async def first(self) -> NodeConnection:
        """Ask the seeds, in order; a node with slots that we are connected to.

        All of that within ``connect_timeout``, if one of them answers.

        Raises:
            BackendError: none of them can tell, or no node with slots can be reached.
            ConfigurationError: they are no cluster.
        """
        await self._try(self._options.seeds, self._ask_new)
        there = self._nodes.all()
        if there:
            return there[0]
        return await self._try(self._slots.primaries, self._join)

    async def _try(
        self, servers: Sequence[Server], do: Callable[[Server], Awaitable[T]]
    ) -> T:
        """The first that succeeds; each has a share of the time."""
        patience = self._options.connect_timeout / (len(servers) + 1)
        failures: list[Failure] = []
        for server in servers:
            try:
                with anyio.fail_after(patience):
                    return await do(server)
            except (BackendError, ConfigurationError) as exc:
                failures.append(exc)
            except TimeoutError:
                failures.append(
                    BackendUnavailable(what=f"{shown(server)}: no answer in time")
                )
        raise _most_telling(self._options.where, failures)

    async def ask(self) -> bool:
        """Ask whoever is known, in any order; whether somebody answered."""
        connected = [node for node in self._nodes.all() if node.connected]
        random.shuffle(connected)
        there = {node.server for node in connected}
        others = [server for server in self._slots.known if server not in there]
        random.shuffle(others)
        patience = min(NODE_TIMEOUT, self._options.connect_timeout)
        for ask in (
            *(partial(self._ask_at, node) for node in connected),
            *(partial(self._ask_new, server) for server in others),
        ):
            with suppress(BackendError, ConfigurationError, TimeoutError):
                with anyio.fail_after(patience):
                    await ask()
                return True
        return False

    async def _ask_at(self, node: NodeConnection) -> None:
        self._slots.learn(await _ask(node), node.server)
        self._adopt()

    async def _ask_new(self, server: Server) -> None:
        await self._visit(server, self._ask_at)

    async def _join(self, server: Server) -> NodeConnection:
        """Connect to a node that has slots."""
        await self._visit(server)
        node = self._nodes.find(server)
        if node is None:
            raise BackendUnavailable(
                what=f"{shown(server)}: it has no slots any more", nothing_done=True
            )
        return node

    async def _visit(
        self,
        server: Server,
        do: Callable[[NodeConnection], Awaitable[None]] | None = None,
    ) -> None:
        """Over a new connection, kept if the node has slots and none of ours yet."""
        node, kept = self._nodes.make(server), False
        try:
            await node.open()
            if do is not None:
                await do(node)
            if server in self._slots.primaries:
                kept = self._nodes.add(node)
        finally:
            if not kept:
                with anyio.CancelScope(shield=True):
                    await node.aclose()


async def _ask(node: NodeConnection) -> Any:  # noqa: ANN401 - as it came
    try:
        return await node.call("CLUSTER", "SLOTS")
    except BackendError as exc:
        if "cluster support disabled" in str(exc):
            raise ConfigurationError(
                what=f"{shown(node.server)}: it is no node of a cluster",
                hint="redis:// is for a server of its own",
            ) from exc
        raise


def _most_telling(where: str, failures: list[Failure]) -> Failure:
    """A node that answers knows more than one that cannot be reached."""
    for kind in (Unsupported, ConfigurationError):
        for failure in failures:
            if isinstance(failure, kind):
                return failure
    nobody = BackendUnavailable(what=f"{where}: no node has slots", nothing_done=True)
    return failures[-1] if failures else nobody


MAX_SEARCH_INTERVAL = 5.0
"""Seconds between two looks, at most, while a node stays away."""


class TopologyRefresher:
    """Asks, ever more seldom, until the map is in no doubt and every node is there.

    A doubt keeps it going and does not hasten it: a cluster that is down refuses every
    call, for as long as it takes. What has changed does: more may change with it.
    """

    def __init__(
        self,
        host: EventLoop,
        ask: Callable[[], Awaitable[bool]],
        complete: Callable[[], bool],
    ) -> None:
        """``ask()``: whether somebody told; ``complete()``: every node is there."""
        self._ask = ask
        self._complete = complete
        self._doubted = False
        self._attempts = 0
        self._hastened: anyio.Event | None = None
        self.errand: BackgroundTask = BackgroundTask(host, self._run)

    def doubt(self, *, soon: bool = False) -> None:
        """The map may be wrong; ``soon``: for a reason that is new."""
        self._doubted = True
        if soon:
            self.hasten()
        self.errand.start()

    def hasten(self) -> None:
        """Something has changed."""
        self._attempts = 0
        if self._hastened is not None:
            self._hastened.set()
        self.errand.start()

    def go_on(self) -> None:
        """Somebody needs what is looked for: all tasks may have been cancelled."""
        self.errand.start()

    async def _run(self) -> None:
        self._attempts = 0
        while True:
            await self._pause()
            if not self._doubted and self._complete():
                return
            self._doubted = False
            if not await self._ask():
                self._doubted = True

    async def _pause(self) -> None:
        self._hastened = anyio.Event()
        seconds = back_off(self._attempts, random.random(), longest=MAX_SEARCH_INTERVAL)
        self._attempts += 1
        with anyio.move_on_after(seconds):
            await self._hastened.wait()
            await anyio.sleep(back_off(0, random.random()))  # a storm is looked at once
