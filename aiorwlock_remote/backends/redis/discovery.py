"""Learns the map of a cluster from whichever node answers."""

from __future__ import annotations

import random
from typing import Any

import anyio

from aiorwlock_remote.backends.redis.hosts import Server, shown
from aiorwlock_remote.backends.redis.node import Node
from aiorwlock_remote.backends.redis.nodes import Nodes
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.slots import SlotMap
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)

PATIENCE = 1.0
"""Seconds for one node to answer, while others may."""

Failure = BackendError | ConfigurationError


class Discovery:
    """Asks CLUSTER SLOTS: one node at a time, those we are connected to first."""

    def __init__(self, options: Options, slots: SlotMap, nodes: Nodes) -> None:
        """Nothing is known yet."""
        self._options = options
        self._slots = slots
        self._nodes = nodes

    async def first(self) -> None:
        """Ask the seeds, in order, within ``connect_timeout``.

        Raises:
            BackendError: none of them can tell.
            ConfigurationError: they are no cluster.
        """
        seeds, failures = self._options.seeds, list[Failure]()
        patience = self._options.connect_timeout / (len(seeds) + 1)
        for seed in seeds:
            try:
                with anyio.fail_after(patience):
                    await self._ask_new(seed)
            except (BackendError, ConfigurationError) as exc:
                failures.append(exc)
            except TimeoutError:
                failures.append(
                    BackendUnavailable(what=f"{shown(seed)}: no answer in time")
                )
            else:
                return
        raise _most_telling(failures)

    async def ask(self) -> bool:
        """Ask whoever is known, in any order; whether somebody answered."""
        connected = [node for node in self._nodes.all() if node.connected]
        random.shuffle(connected)
        for node in connected:
            try:
                with anyio.fail_after(self._patience):
                    self._learn(await _ask(node), node.server)
            except (BackendError, ConfigurationError, TimeoutError):
                continue
            return True
        there = {node.server for node in connected}
        others = [server for server in self._slots.known if server not in there]
        random.shuffle(others)
        for server in others:
            try:
                with anyio.fail_after(self._patience):
                    await self._ask_new(server)
            except (BackendError, ConfigurationError, TimeoutError):
                continue
            return True
        return False

    @property
    def _patience(self) -> float:
        return min(PATIENCE, self._options.connect_timeout)

    async def _ask_new(self, server: Server) -> None:
        """Over a new connection, kept if the node has slots and none of ours yet."""
        node, kept = self._nodes.make(server), False
        try:
            await node.open()
            self._learn(await _ask(node), server)
            if server in self._slots.primaries and self._nodes.find(server) is None:
                self._nodes.add(node)
                kept = True
        finally:
            if not kept:
                with anyio.CancelScope(shield=True):
                    await node.aclose()

    def _learn(self, answer: Any, asked: Server) -> None:  # noqa: ANN401 - as it came
        self._slots.learn(answer, asked)


async def _ask(node: Node) -> Any:  # noqa: ANN401 - as it came
    try:
        return await node.call("CLUSTER", "SLOTS")
    except BackendError as exc:
        if "cluster support disabled" in str(exc):
            raise ConfigurationError(
                what=f"{shown(node.server)}: it is no node of a cluster",
                hint="redis:// is for a server of its own",
            ) from exc
        raise


def _most_telling(failures: list[Failure]) -> Failure:
    """A node that answers knows more than one that cannot be reached."""
    for kind in (Unsupported, ConfigurationError):
        for failure in failures:
            if isinstance(failure, kind):
                return failure
    return failures[-1]
