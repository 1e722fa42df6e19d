"""The simulated Redis server runs the scripts as a real one: as the core says."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from aiorwlock_remote.backends.redis.connection.protocol import Arg
from tests.backends.redis.differential import Comparison, PermitComparison, Wire
from tests.simulation.redis import RedisServers
from tests.simulation.redis_server import Node, Push
from tests.simulation.world import SimulatedProcess, World

COMMANDS = 1_500


class DirectWire(Wire):
    """Asks a node without any network. The one of a port is made for the first."""

    nodes: ClassVar[dict[int, Node]] = {}

    def __init__(self, port: int) -> None:
        world = World(port)
        servers = RedisServers(world)
        self.process = SimulatedProcess(world, "tester", 1.0)
        self.channels: set[bytes] = set()
        self._node = self.nodes.setdefault(port, next(iter(servers.nodes.values())))
        self.number = self._node.accept(self)
        self._came: deque[Any] = deque()

    def ask(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        return [self._answer(command) for command in commands]

    def take(self) -> Any:  # noqa: ANN401 - as the base
        return self._came.popleft()

    def push(self, push: Push) -> None:
        self._came.append(push)

    def end_there(self) -> None:
        raise AssertionError("nobody ends it")

    def close(self) -> None:
        self.process.loop.close()

    def _answer(self, command: tuple[Arg, ...]) -> Any:  # noqa: ANN401 - as the base
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in command]
        found = self._node.answer(self, parts)
        return found.encode() if isinstance(found, str) else found


class SimulatedComparison(Comparison):
    wire = DirectWire


class SimulatedPermits(PermitComparison):
    wire = DirectWire


@pytest.mark.parametrize("kind", [SimulatedComparison, SimulatedPermits])
def test_the_simulated_server_agrees_with_the_core(kind: type[Comparison]) -> None:
    comparison = kind(port=len(DirectWire.nodes))
    comparison.run(COMMANDS, 5)
    comparison.close()
    assert comparison.seen["Acquire Granted"] > 100
    assert comparison.seen["heard"] > 10
