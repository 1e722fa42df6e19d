"""Learns which node of a cluster has which slot, and learns it again after changes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.addresses import Server, shown
from aiorwlock_remote.backends.redis.cluster.nodes import NodeConnection, NodePool
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap
from aiorwlock_remote.backends.redis.errors import Failure, lasting
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
)
from aiorwlock_remote.ports import EventLoop

NODE_TIMEOUT = 1.0
"""Seconds for which one node's answer is awaited before another node is asked."""
MAX_SEARCH_INTERVAL = 5.0
"""Maximum seconds between two questions for the map while a node stays away."""

T = TypeVar("T")


class Discovery:
    """Asks nodes for the slot map, CLUSTER SLOTS; connected nodes are asked first."""

    def __init__(
        self,
        options: Options,
        slots: SlotMap,
        nodes: NodePool,
        adopt: Callable[[], object],
    ) -> None:
        """Prepare to fill the map ``slots`` by asking ``nodes``.

        ``adopt()`` is called each time the map was filled, before anything uses it.
        """
        self._options = options
        self._slots = slots
        self._nodes = nodes
        self._adopt = adopt

    async def first(self) -> NodeConnection:
        """Ask the seeds in order; return a connected node that has slots.

        Raises:
            BackendError: No seed can answer within ``connect_timeout``, or no node with
                slots can be reached.
            ConfigurationError: The seeds are not nodes of a cluster.
        """
        await self._try_each(self._options.seeds, self._visit)
        # A seed that has slots has stayed connected. A replica, or a node whose slots
        # have moved away, has not.
        connected = self._nodes.all()
        if connected:
            return connected[0]
        return await self._try_each(self._slots.primaries, self._join)

    async def ask(self) -> bool:
        """Ask nodes for the slot map until one replies; return False if none does."""
        connected = [node for node in self._nodes.all() if node.connected]
        random.shuffle(connected)
        asked = {node.server for node in connected}
        others = [server for server in self._slots.known if server not in asked]
        random.shuffle(others)
        patience = min(NODE_TIMEOUT, self._options.connect_timeout)
        for ask in (
            *(partial(self._ask_at, node) for node in connected),
            *(partial(self._visit, server) for server in others),
        ):
            with suppress(BackendError, ConfigurationError, TimeoutError):
                with anyio.fail_after(patience):
                    await ask()
                return True
        return False

    async def _try_each(
        self, servers: Sequence[Server], function: Callable[[Server], Awaitable[T]]
    ) -> T:
        patience = self._options.connect_timeout / (len(servers) + 1)
        failures: list[Failure] = []
        for server in servers:
            try:
                with anyio.fail_after(patience):
                    return await function(server)
            except (BackendError, ConfigurationError) as exc:
                failures.append(exc)
            except TimeoutError:
                failures.append(
                    BackendUnavailable(what=f"{shown(server)}: no answer in time")
                )
        where = self._options.where
        nobody = BackendUnavailable(
            what=f"{where}: no node has slots", nothing_done=True
        )
        raise lasting(failures) or (failures[-1] if failures else nobody)

    async def _ask_at(self, node: NodeConnection) -> None:
        before = self._slots.owners
        self._slots.learn(await _cluster_slots(node), node.server)
        if self._slots.owners != before:
            where, primaries = shown(node.server), len(self._slots.primaries)
            log_debug("topology_changed", server=where, primaries=primaries)
        self._adopt()

    async def _visit(self, server: Server, *, ask: bool = True) -> None:
        node, kept = self._nodes.make(server), False
        try:
            await node.open()
            if ask:
                await self._ask_at(node)
            # After the question: the node may have lost its slots while we connected
            # (test_a_node_that_lost_its_slots_while_we_connected_is_not_the_first).
            if server not in self._slots.primaries:
                return
            kept = self._nodes.add(node)
        finally:
            if not kept:
                with anyio.CancelScope(shield=True):
                    await node.aclose()

    async def _join(self, server: Server) -> NodeConnection:
        await self._visit(server, ask=False)
        node = self._nodes.find(server)
        if node is None:
            raise BackendUnavailable(
                what=f"{shown(server)}: it has no slots any more", nothing_done=True
            )
        return node


class TopologyRefresher:
    """Background task: asks for the slot map until it is current and all nodes are up.

    The pauses between requests grow. A refused call keeps the task running but does not
    shorten the pauses: a cluster that is down refuses every call. A change of the
    cluster does shorten them, because more may change with it
    (test_topology_refresher.py).
    """

    def __init__(
        self,
        loop: EventLoop,
        ask: Callable[[], Awaitable[bool]],
        complete: Callable[[], bool],
    ) -> None:
        """Prepare the task, which ``refresh`` starts.

        ``ask`` asks for the map and returns True if a node replied; ``complete``
        returns True if every node is connected.
        """
        self._clock = loop.clock
        self._ask = ask
        self._complete = complete
        self._stale = False
        self._attempts = 0
        self.task: BackgroundTask = BackgroundTask(loop, self._run)

    def refresh(self, *, soon: bool = False) -> None:
        """Request a new slot map. ``soon``: reset the back-off, for a short pause."""
        self._stale = True
        if soon:
            self.hurry()
        self.task.start()

    def hurry(self) -> None:
        """End the pause before the next request for the map; start with short ones."""
        self._attempts = 0
        self.task.wake()

    async def _run(self) -> None:
        self._attempts = 0
        while True:
            await self._pause()
            if not self._stale and self._complete():
                return
            self._stale = False
            if not await self._ask():
                self._stale = True

    async def _pause(self) -> None:
        pause = back_off(self._attempts, random.random(), longest=MAX_SEARCH_INTERVAL)
        self._attempts += 1
        until = self._clock.now() + pause
        await self.task.sleep_until(until)
        # Woken early: a node that gives away a thousand slots says so a thousand times,
        # and one question learns them all.
        left = until - self._clock.now()
        if left > 0:
            await anyio.sleep(min(left, back_off(0, random.random())))


async def _cluster_slots(node: NodeConnection) -> Any:  # noqa: ANN401 - not decoded
    try:
        return await node.call("CLUSTER", "SLOTS")
    except BackendError as exc:
        if "cluster support disabled" in str(exc):
            raise ConfigurationError(
                what=f"{shown(node.server)}: it is no node of a cluster",
                hint="redis:// is for a server of its own",
            ) from exc
        raise
