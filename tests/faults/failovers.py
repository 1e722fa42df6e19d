"""The soak of planned failovers: ``python -m tests.faults.failovers``.

``SENTINEL FAILOVER`` promotes a replica while the old primary stays up and writable
for 8 to 10 s. A holder that stays connected to the old primary, and a newcomer that
asks a Sentinel for the new one, would then hold one lock together.

In each failover

* grants that all replicas have ("replicated") are held over the failover;
* a client takes new locks without a pause until the failover is over ("fresh"): those
  granted by the old primary after the promotion are known to no replica;
* newcomers, each with connections of its own, try to take all of these.

Tells how many replicated grants were lost though the new primary has them or had them,
how many locks two holders had at once, and for how long at most.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import hiredis

from aiorwlock_remote import Held, LockError, Locks, connect
from aiorwlock_remote.backends.redis import RedisBackend
from tests.backends.redis.clients import sentinel_client
from tests.servers.process import until
from tests.servers.sentinel import NAME, SentinelGroup

KEPT = 20
"""Replicated grants that are held over each failover."""
FRESH = 0.02
"""Seconds between two grants of the client that takes new locks."""
NEWCOMERS = 0.05
"""Seconds between two newcomers."""
BAR = 1.0
"""Seconds for which a grant that was not replicated may have a second holder."""

Connect = Callable[[SentinelGroup], AbstractAsyncContextManager[Locks]]
"""How holders and newcomers connect."""


@dataclass
class Belief:
    """A client believed to hold a lock from ``begun`` to ``ended``."""

    held: Held
    begun: float
    ended: float = inf
    lost: bool = False


class Round:
    """One failover: which clients believed to hold which lock, and when."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.beliefs: defaultdict[str, list[Belief]] = defaultdict(list)

    async def take(self, locks: Locks, name: str) -> bool:
        """Take a lock if it is free, and keep it."""
        held = await locks.mutex("planned", name, lease=self.lease).try_acquire()
        if held is not None:
            self.beliefs[name].append(Belief(held, monotonic()))
        return held is not None

    async def watch(self) -> None:
        """Note when each grant is not believed any more."""
        while True:
            for beliefs in self.beliefs.values():
                for belief in beliefs:
                    if belief.ended == inf and not belief.held.valid:
                        belief.ended, belief.lost = monotonic(), True
            await anyio.sleep(0.01)

    def end(self) -> None:
        """What is held to the end is held until now."""
        now = monotonic()
        for beliefs in self.beliefs.values():
            for belief in beliefs:
                belief.ended = min(belief.ended, now)

    def overlaps(self, kind: str) -> list[float]:
        """The seconds for which each lock of a kind had two holders, if it had."""
        found = []
        for name, beliefs in self.beliefs.items():
            if name.startswith(kind):
                latest = -inf
                for one in sorted(beliefs, key=lambda one: one.begun):
                    found.append(min(latest, one.ended) - one.begun)
                    latest = max(latest, one.ended)
        return [seconds for seconds in found if seconds > 0]

    def lost(self, kind: str) -> int:
        """How many locks of a kind their first holder lost."""
        return sum(
            beliefs[0].lost
            for name, beliefs in self.beliefs.items()
            if name.startswith(kind)
        )

    def grants(self, kind: str) -> int:
        """How often a lock of a kind was granted."""
        return sum(
            len(beliefs)
            for name, beliefs in self.beliefs.items()
            if name.startswith(kind)
        )


@dataclass
class Result:
    """All failovers of one lease."""

    lease: float
    rounds: list[Round] = field(default_factory=list)

    def overlaps(self, kind: str) -> list[float]:
        """Of all failovers."""
        return [seconds for each in self.rounds for seconds in each.overlaps(kind)]

    def __str__(self) -> str:
        said = [f"lease {self.lease:g} s: {len(self.rounds)} failovers"]
        for kind in ("replicated", "fresh"):
            grants = sum(each.grants(kind) for each in self.rounds)
            doubles = self.overlaps(kind)
            longest = max(doubles, default=0.0)
            said.append(
                f"{grants} grants of {kind} locks, {len(doubles)} with two holders"
                f" (for {longest:.3f} s at most)"
            )
        losses = [lost for each in self.rounds if (lost := each.lost("replicated"))]
        said.append(f"{sum(losses)} replicated grants lost in {len(losses)} failovers")
        return "; ".join(said)

    @property
    def passes(self) -> bool:
        """Whether it meets the bar."""
        fresh = max(self.overlaps("fresh"), default=0.0)
        return not self.overlaps("replicated") and fresh <= BAR


async def planned_failover(
    group: SentinelGroup, lease: float, connect: Connect, settle: float = 0
) -> Round:
    """Hold, fail over, let newcomers try, until the old primary was demoted.

    Args:
        group: the servers.
        lease: seconds.
        connect: how holders and newcomers connect.
        settle: if given, end so many seconds after the promotion.
    """
    round_, old = Round(lease), group.primary
    salt = f"{old.port}.{monotonic()}"
    kept = [f"replicated {salt}.{i}" for i in range(KEPT)]
    fresh: list[str] = []
    async with AsyncExitStack() as open_ones, anyio.create_task_group() as tasks:
        holder = await open_ones.enter_async_context(connect(group))
        for name in kept:
            assert await round_.take(holder, name)
        await _until(lambda: group.in_step(old, 2), "the replicas have the grants")
        tasks.start_soon(round_.watch)
        tasks.start_soon(_take_fresh, round_, holder, fresh, salt)
        await _until(lambda: _begin(group), "a Sentinel begins the failover")
        tasks.start_soon(_newcomers, round_, group, connect, open_ones, [kept, fresh])
        await anyio.to_thread.run_sync(group.await_another, old)
        if settle:
            await anyio.sleep(settle)
        else:
            await _until(lambda: old.role == "slave", "the old primary was demoted")
            await anyio.sleep(2)
        round_.end()
        tasks.cancel_scope.cancel()
    return round_


async def _until(check: Callable[[], bool], what: str) -> None:
    await anyio.to_thread.run_sync(until, check, what, 40)


def _begin(group: SentinelGroup) -> bool:
    """Whether a Sentinel agreed; it refuses while the last failover goes on."""
    try:
        group.sentinels[0].ask("SENTINEL", "FAILOVER", NAME)
    except hiredis.ReplyError:
        return False
    return True


async def _take_fresh(
    round_: Round, holder: Locks, fresh: list[str], salt: str
) -> None:
    """Take new locks for 4 s: the promotion comes within the first two."""
    begun = monotonic()
    for i in count():
        if monotonic() > begun + 4:
            return
        name = f"fresh {salt}.{i}"
        with suppress(LockError):  # the connection was hung up
            if await round_.take(holder, name):
                fresh.append(name)
        await anyio.sleep(FRESH)


async def _newcomers(
    round_: Round,
    group: SentinelGroup,
    connect: Connect,
    open_ones: AsyncExitStack,
    names: list[list[str]],
) -> None:
    """Come again and again, and keep what is free at the primary they are sent to."""
    while True:
        with suppress(LockError):
            async with AsyncExitStack() as mine:
                locks = await mine.enter_async_context(connect(group))
                took: list[str] = []
                async with anyio.create_task_group() as tries:
                    for name in [name for some in names for name in some]:
                        tries.start_soon(_try, round_, locks, name, took)
                if took:
                    open_ones.push_async_exit(mine.pop_all())
        await anyio.sleep(NEWCOMERS)


async def _try(round_: Round, locks: Locks, name: str, took: list[str]) -> None:
    with suppress(LockError):
        if await round_.take(locks, name):
            took.append(name)


def by_url(group: SentinelGroup) -> AbstractAsyncContextManager[Locks]:
    """By a URL that names the Sentinels."""
    return connect(group.url)


def untold(group: SentinelGroup) -> AbstractAsyncContextManager[Locks]:
    """By a URL whose user may not subscribe at the Sentinels."""
    rule = ["ACL", "SETUSER", "untold", "on", ">secret", "&*", "+@all", "-subscribe"]
    for each in group.sentinels:
        each.ask(*rule)
    user = "sentinel_username=untold&sentinel_password=secret"
    return connect(f"{group.url}?{user}")


@asynccontextmanager
async def by_client(group: SentinelGroup) -> AsyncIterator[Locks]:
    """By a client of redis-py's Sentinel."""
    ports = [sentinel.port for sentinel in group.sentinels]
    async with (
        sentinel_client(ports, NAME) as client,
        connect(RedisBackend(client)) as locks,
    ):
        yield locks


async def soak(
    group: SentinelGroup, failovers: int, leases: list[float], how: Connect
) -> list[Result]:
    """So many failovers with each lease."""
    results = []
    for lease in leases:
        result = Result(lease)
        for number in range(failovers):
            result.rounds.append(await planned_failover(group, lease, how))
            print(f"{number + 1}: {result}", file=sys.stderr, flush=True)
        print(result, flush=True)
        results.append(result)
    return results


def main() -> None:
    """Run and report; exit 1 below the bar."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.failovers")
    parser.add_argument("failovers", nargs="?", type=int, default=20)
    parser.add_argument("leases", nargs="*", type=float, default=[1.0, 2.0, 3.0, 6.0])
    parser.add_argument("--trio", action="store_true")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--client", action="store_true", help="of redis-py's Sentinel")
    ways.add_argument("--untold", action="store_true", help="without SUBSCRIBE")
    given = parser.parse_args()
    how: Connect = by_client if given.client else untold if given.untold else by_url
    loop = "trio" if given.trio else "asyncio"
    logging.disable()  # each loss is reported
    with tempfile.TemporaryDirectory() as folder:
        group = SentinelGroup(Path(folder), down_after=20)
        try:
            results = anyio.run(
                soak, group, given.failovers, given.leases, how, backend=loop
            )
        finally:
            group.close()
    sys.exit(0 if all(result.passes for result in results) else 1)


if __name__ == "__main__":
    main()
