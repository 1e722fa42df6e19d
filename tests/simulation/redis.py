"""Redis under the simulation: one server, a primary that Sentinels watch, a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, slot_of
from aiorwlock_remote.backends.redis.keys import Keys, keys_of
from aiorwlock_remote.backends.redis.sentinel import (
    UNKNOWN_EPOCH,
    PrimaryAnswer,
    Sentinels,
)
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import Resource, resource, semaphore
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Clock
from tests.simulation.redis_data import RedisError, lua_runner
from tests.simulation.redis_server import Client, Node, Push, Wire
from tests.simulation.redis_sockets import simulated_sockets
from tests.simulation.store import QUICK, SLOW, SimulatedServer
from tests.simulation.world import SimulatedProcess, World, current_thread

PORT = 6379
COMMAND_TIMEOUT = 2.0
UNREACHABLE_SECONDS = 30.0
NOTICE_SECONDS = 3.0
"""So long after a failover, or after its own trouble, a process may learn of it. A
second is promised; here each message may take 0.6 s."""
RESOURCES = resource("a", 1), resource("b", 1), semaphore("s", 1)


class RedisServers(SimulatedServer):
    """One Redis server; the base of several, to which a process connects by a URL."""

    settling_seconds = 18.0
    names: tuple[str, ...] = ("one",)
    url = f"redis://one?command_timeout={COMMAND_TIMEOUT}"

    def __init__(self, world: World) -> None:
        super().__init__(world, 1.0)
        self.clients: dict[str, SimulatedProcess] = {}
        """Which process a client id belongs to."""
        self.failovers: list[tuple[float, float]] = []
        """When what the new primary knows was so, and when it was promoted."""
        self._silenced: list[Wire] = []
        self.away: dict[SimulatedProcess, float] = {}
        """Until when the network between a process and all servers is away."""
        self.nodes: dict[Server, Node] = {
            (name, PORT): Node(self, name) for name in self.names
        }

    def backend(self, process: SimulatedProcess) -> str:
        del process
        return self.url

    def patches(self) -> AbstractContextManager[None]:
        return simulated_sockets(self)

    def can_connect(self, process: SimulatedProcess, server: Server) -> bool:
        away = self.away.get(process, 0.0) > self.world.now
        return self.nodes[server].is_up and not away

    def time_to_connect(self, process: SimulatedProcess, server: Server) -> float:
        """Return the seconds until a connection is there, or is refused."""
        random = self.world.random
        if not self.can_connect(process, server) and random.random() < 0.5:
            return UNREACHABLE_SECONDS
        return random.uniform(*QUICK)

    def ask_sentinels(
        self,
        sentinels: Sentinels,
        clock: Clock,
        timeout: float,
        resolver: object,
        enough: int = UNKNOWN_EPOCH,
    ) -> dict[Server, PrimaryAnswer]:
        """``sentinel.ask_sentinels``; there are none."""
        raise NotImplementedError

    def node_of(self, keys: Keys) -> Node:
        del keys
        return next(iter(self.nodes.values()))

    # What there is

    def held(self, label: str = "") -> Mapping[Resource, tuple[Doorman, int]]:
        found: dict[Resource, tuple[Doorman, int]] = {}
        for one in RESOURCES:
            if label not in ("", one.label):
                continue
            keys = keys_of("", one, 3600.0)
            names = [name for name in keys.args if isinstance(name, bytes)]
            data = self.node_of(keys).data
            raw = lua_runner().run(data, keys.look.text, names, [])
            snapshot = decode_look(one, raw)
            found[one] = snapshot.record, snapshot.now
        return found

    def processes_of_clients(self) -> Mapping[str, SimulatedProcess]:
        return self.clients

    # Faults

    def faults(self, random: Random) -> list[Callable[[], object]]:
        return [
            partial(self._cut, random),
            partial(self._cut, random),
            partial(self._silence, random),
            partial(self._forget_scripts, random),
            partial(self._set_back, random),
        ]

    def hang(self, seconds: float) -> None:
        random = self.world.random
        node = random.choice(list(self.nodes.values()))
        node.busy_until = max(node.busy_until, self.world.now + seconds)

    def heal(self) -> None:
        super().heal()
        self.away.clear()
        for wire in self._silenced:
            wire.break_down("it was silent")

    def ends_in_trouble(self, process: SimulatedProcess) -> None:
        # It waited for its last replies, but not for long.
        process.haunted = True

    def in_doubt(self, time: float, names: Collection[str]) -> bool:
        """Whether one of these processes may not know yet that its grant was lost."""
        known = {process.name: process for process in self.clients.values()}
        trouble = max(known[name].troubled_until for name in names)
        return any(
            begin <= time <= max(promoted, trouble) + NOTICE_SECONDS
            for begin, promoted in self.failovers
        )

    def revive(self) -> None:
        for node in self.nodes.values():
            node.is_up = True

    def _wires(self) -> list[Wire]:
        wires = [wire for node in self.nodes.values() for wire in node.wires()]
        return [
            wire
            for wire in wires
            if isinstance(wire, Wire) and wire.is_open and not wire.process.dead
        ]

    def _cut(self, random: Random) -> None:
        if wires := self._wires():
            random.choice(wires).break_down("a fault of the network")

    def _silence(self, random: Random) -> None:
        if wires := self._wires():
            wire = random.choice(wires)
            wire.go_silent()
            self._silenced.append(wire)

    def part(self, random: Random) -> None:
        if wires := self._wires():
            process = random.choice(wires).process
            self.away[process] = self.world.now + random.uniform(0.5, 4.0)
            process.in_trouble(self.away[process])
            for wire in wires:
                if wire.process is process:
                    wire.break_down("the network is away")

    def _forget_scripts(self, random: Random) -> None:
        node = random.choice(list(self.nodes.values()))
        self.world.tell(f"{node.name} forgets its scripts")
        node.forget_scripts()

    def _set_back(self, random: Random) -> None:
        seconds = random.uniform(0.1, 3.0)
        self.world.tell(f"all clocks of servers are set back by {seconds:.3f} s")
        for node in self.nodes.values():
            node.set_back += seconds


class Cluster(RedisServers):
    """Three nodes, between which slots move."""

    names = ("one", "two", "three")
    url = f"redis+cluster://one,two,three?command_timeout={COMMAND_TIMEOUT}"

    def __init__(self, world: World) -> None:
        self._moved: dict[int, Server] = {}
        self._moving: dict[int, str] = {}
        """By slot: what a node says to a command meanwhile."""
        super().__init__(world)
        self.nodes = {
            (name, PORT): ClusterNode(self, name, (name, PORT)) for name in self.names
        }

    def owner(self, slot: int) -> Server:
        names = list(self.nodes)
        return self._moved.get(slot, names[slot * len(names) // SLOTS])

    def node_of(self, keys: Keys) -> Node:
        return self.nodes[self.owner(slot_of(keys.seat))]

    def refusal(self, slot: int, asked: Server) -> str | None:
        owner = self.owner(slot)
        if owner != asked:
            return f"MOVED {slot} {owner[0]}:{owner[1]}"
        return self._moving.get(slot)

    def slots(self) -> list[Any]:
        """Return the answer to CLUSTER SLOTS."""
        names = list(self.nodes)
        starts = {-(-SLOTS * n // len(names)) for n in range(len(names))}
        starts |= {edge for slot in self._moved for edge in (slot, slot + 1)}
        edges = [*sorted(starts - {SLOTS}), SLOTS]
        found: list[Any] = []
        for first, after in pairwise(edges):
            host, port = self.owner(first)
            found.append([first, after - 1, [host.encode(), port, host.encode() * 10]])
        return found

    def faults(self, random: Random) -> list[Callable[[], object]]:
        move = partial(self._begin_to_move, random)
        return [*super().faults(random), move, move, move]

    def _begin_to_move(self, random: Random) -> None:
        one = random.choice(RESOURCES)
        slot = slot_of(keys_of("", one, 3600.0, cluster=True).seat)
        if slot in self._moving:
            return
        others = [server for server in self.nodes if server != self.owner(slot)]
        new = random.choice(others)
        self._moving[slot] = random.choice(["TRYAGAIN", "CLUSTERDOWN"])
        self.world.tell(f"slot {slot} of {one} begins to move to {new[0]}")
        self.world.after(random.uniform(0.0, 0.5), partial(self._move, slot, new))

    def _move(self, slot: int, new: Server) -> None:
        old = self.nodes[self.owner(slot)]
        self.world.tell(f"slot {slot} has moved to {new[0]}")
        self._moving.pop(slot)
        self._moved[slot] = new
        old.data.give(self.nodes[new].data, lambda key: slot_of(key) == slot)
        for wire in old.wires():
            for channel in sorted(wire.channels):
                if slot_of(channel) == slot:
                    wire.channels.discard(channel)
                    wire.push(Push([b"sunsubscribe", channel, len(wire.channels)]))


class ClusterNode(Node):
    """Refuses what another node has; SUBSCRIBE and the like are of a slot, too."""

    mode = "cluster"
    message = b"smessage"

    def __init__(self, cluster: Cluster, name: str, address: Server) -> None:
        super().__init__(cluster, name)
        self._cluster = cluster
        self._address = address

    def answer(self, wire: Client, command: list[bytes]) -> Any:
        name, *args = command
        if name == b"CLUSTER":
            return self._cluster.slots()
        key = None
        if name in {b"SSUBSCRIBE", b"SUNSUBSCRIBE"}:
            key = args[0]
        elif name in {b"EVAL", b"EVALSHA"}:
            if name == b"EVALSHA" and not self.knows(args[0]):
                return super().answer(wire, command)
            key = args[2]
        refusal = key and self._cluster.refusal(slot_of(key), self._address)
        if refusal:
            return RedisError(refusal)
        return super().answer(wire, command)


class Failovers(RedisServers):
    """A primary and a replica, which change their roles; three Sentinels know of it.

    The replica is behind: what the primary did last is lost. After a planned failover
    the former primary goes on for a while, and grants what its successor grants, too.
    """

    names = ("one", "two")
    sentinel_names = ("s1", "s2", "s3")
    url = (
        "redis+sentinel://s1:6379,s2:6379,s3:6379/main"
        f"?command_timeout={COMMAND_TIMEOUT}"
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._primary: Server = "one", PORT
        self._past: deque[tuple[float, Any]] = deque(maxlen=256)
        self._busy = False
        self._sentinels = [Sentinel(self, name) for name in self.sentinel_names]
        for sentinel in self._sentinels:
            sentinel.learn((0, self._primary))
            self.nodes[sentinel.name, PORT] = sentinel
        for server, node in self._stores().items():
            node.role = "master" if server == self._primary else "slave"
            node.after_script = partial(self._note_past, server)
        self._epoch = 0
        self._note_past(self._primary)

    def node_of(self, keys: Keys) -> Node:
        del keys
        return self.nodes[self._primary]

    def ask_sentinels(
        self,
        sentinels: Sentinels,
        clock: Clock,
        timeout: float,
        resolver: object,
        enough: int = UNKNOWN_EPOCH,
    ) -> dict[Server, PrimaryAnswer]:
        """``sentinel.ask_sentinels``, in a simulated thread."""
        del clock, resolver, enough
        process, thread = self.world.running_process(), current_thread()
        slow = self.world.random.random() < self.network.slow
        seconds = self.world.random.uniform(*(SLOW if slow else QUICK))
        thread.wait(min(timeout, seconds))
        if seconds < timeout:
            answers = {
                (one.name, PORT): one.known
                for one in self._sentinels
                if self.can_connect(process, (one.name, PORT))
            }
            if answers:
                return answers
            thread.wait(timeout - seconds)
        raise BackendUnavailable(
            what=f"no Sentinel tells where {sentinels.name!r} is", nothing_done=True
        )

    def faults(self, random: Random) -> list[Callable[[], object]]:
        fail_over = partial(self._fail_over, random)
        return [*super().faults(random), *[fail_over] * 6]

    def hang(self, seconds: float) -> None:
        # A Sentinel that hangs is one of three; the primary matters.
        node = self.nodes[self._primary]
        node.busy_until = max(node.busy_until, self.world.now + seconds)

    def _stores(self) -> dict[Server, Node]:
        return {(name, PORT): self.nodes[name, PORT] for name in self.names}

    def _note_past(self, server: Server) -> None:
        if server == self._primary:
            self._past.append((self.world.now, self.nodes[server].data.copy()))

    def _fail_over(self, random: Random) -> None:
        if self._busy:
            return
        self._busy = True
        planned = random.random() < 0.7
        old = self.nodes[self._primary]
        lag = random.choice([0.0, 0.05] if planned else [0.0, 0.1, 1.0])
        self.world.tell(
            f"a {'' if planned else 'not '}planned failover, {lag} s behind"
        )
        if not planned:
            old.stop()
        wait = 0.2 if planned else random.uniform(0.5, 3.0)
        self.world.after(wait, partial(self._promote, random, planned, lag))

    def _promote(self, random: Random, planned: bool, lag: float) -> None:
        former = self._primary
        (new,) = self._stores().keys() - {former}
        until = (self.world.now if planned else self._past[-1][0]) - lag
        past = [state for time, state in self._past if time <= until]
        self._primary = new
        node = self.nodes[new]
        node.is_up, node.role = True, "master"
        node.data.restore(past[-1] if past else self._past[0][1])
        self._past.clear()
        self._note_past(new)
        self.failovers.append((until, self.world.now))
        for process in self.clients.values():
            # What was given back lately is held again, who has left waits again.
            process.haunted = process.was_cut = True
        self._epoch += 1
        self.world.tell(f"{node.name} is the primary")
        first, *others = random.sample(self._sentinels, len(self._sentinels))
        first.learn((self._epoch, new))
        # One may be cut off together with the former primary.
        latest = [1.0, random.choice([1.0, 9.0])]
        for sentinel, seconds in zip(others, latest, strict=True):
            learn = partial(sentinel.learn, (self._epoch, new))
            self.world.after(random.uniform(0.0, seconds), learn)
        # Somebody comes to the new primary before the others have left the former.
        self.world.after(random.uniform(0.1, 2.0), partial(self._cut, random))
        wait = random.uniform(9.0, 12.0) if planned else 1.0
        self.world.after(wait, partial(self._demote, former))

    def _demote(self, server: Server) -> None:
        node = self.nodes[server]
        self.world.tell(f"{node.name} is a replica")
        node.is_up, node.role = True, "slave"
        for wire in node.wires():
            wire.end_there()
        self._busy = False


class Sentinel(Node):
    """Tells where the primary is, when asked and by messages."""

    mode = "sentinel"

    def __init__(self, servers: RedisServers, name: str) -> None:
        super().__init__(servers, name)
        self.known: PrimaryAnswer = -1, ("", 0)

    def learn(self, known: PrimaryAnswer) -> None:
        before, self.known = self.known, known
        if before[0] >= 0:
            (old, _), (new, _) = before[1], known[1]
            text = f"main {old} {PORT} {new} {PORT}"
            self._publish(b"+switch-master", text.encode())

    def answer(self, wire: Client, command: list[bytes]) -> Any:
        if command[0] == b"SENTINEL":
            host, port = self.known[1]
            return [host.encode(), b"%d" % port]
        return super().answer(wire, command)


REDIS_KINDS = {"redis": RedisServers, "cluster": Cluster, "failovers": Failovers}
