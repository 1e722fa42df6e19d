"""The connection is cut at every byte of a request and of its answer.

Whatever it was, the outcome is known or said to be uncertain, nobody hangs, nothing is
held beyond its lease, and the next acquire goes over a new connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    connect,
)
from aiorwlock_remote.backends.redis.connection import connection
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.locks.lock import Mutex, ReaderLock
from tests.faults.redis_seats import client, left
from tests.servers.proxy import Proxy, Side
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("a cut connection is nothing new to it"),
]

Operation = Literal["try", "wait", "read", "queue", "release"]

LANES = 40
FAR = 1_000_000
SLACK = 8
"""Bytes past the measured ones: names of tasks grow."""
LEASE = 30.0
"""Seconds; a lock whose release was lost is free sooner, as the release is repeated."""
PATIENCE = 60.0
"""Seconds for all that is not what a case is about: machines stand still."""


class Case:
    """One operation on a resource of its own over a connection that will be cut."""

    def __init__(self, server: RedisServer, operation: Operation, name: str) -> None:
        self._server = server
        self._operation = operation
        self._name = name
        self._base = f"mutex_locks/cut,{name}"
        self.length = 0  # in bytes, if nothing was cut

    async def run(self, side: Side, count: int) -> str:
        """Cut after so many bytes have gone to that side; what came of it."""
        with Proxy(self._server.port) as proxy:
            async with connect(
                proxy.url, lease=LEASE, connect_timeout=PATIENCE
            ) as locks:
                with anyio.fail_after(3 * PATIENCE):
                    return await self._run(locks, proxy, side, count)

    async def _run(self, locks: Locks, proxy: Proxy, side: Side, count: int) -> str:
        lock = self._lock(locks)
        if self._operation == "release":
            held = await lock.acquire()
            proxy.cut_after(count, to=side)
            outcome = await self._released(held, proxy)
        elif self._operation == "queue":
            async with connect(self._server.url) as near:
                other = await self._lock(near).acquire()
                proxy.cut_after(count, to=side)
                outcome = await self._queued(lock, other, proxy)
        else:
            proxy.cut_after(count, to=side)
            outcome = await self._acquired(lock, proxy)
        proxy.cut_after(FAR, to=side)  # it may have been shorter than thought
        await self._again(locks.mutex("cut", self._name, lease=60))
        assert self._stands() == (None, 0, 0)
        return outcome

    async def _again(self, lock: Mutex) -> None:
        for last in (False, True):
            try:
                held = await lock.acquire(timeout=PATIENCE)
                assert await held.release()
            except BackendUnavailable:
                if last:  # once: the cut came too late for the operation to meet it
                    raise

    def _lock(self, locks: Locks) -> Mutex | ReaderLock:
        if self._operation == "read":
            return locks.rwlock("cut", self._name).reader
        return locks.mutex("cut", self._name)

    async def _acquired(self, lock: Mutex | ReaderLock, proxy: Proxy) -> str:
        try:
            if self._operation == "try":
                held = await lock.try_acquire()
                assert held is not None
            else:
                held = await lock.acquire(timeout=PATIENCE)
        except (BackendUnavailable, LockTimeout) as exc:
            assert self._stands() == (None, 0, 0), "said not to be held, but it is"
            return type(exc).__name__
        self.length = _passed(proxy)
        self._holds(held.holder)
        try:
            await held.release()
        except LockLost:
            # Granted by message, and not confirmed within the claim window: the machine
            # stood still, or the cut hit the confirmation.
            assert self._operation == "queue"
            return "lost"
        except BackendUnavailable:  # a late cut
            pass
        return "held"

    async def _queued(self, lock: Mutex | ReaderLock, other: Held, proxy: Proxy) -> str:
        outcomes: list[str] = []
        async with anyio.create_task_group() as group:

            async def acquire() -> None:
                outcomes.append(await self._acquired(lock, proxy))

            group.start_soon(acquire)
            # It has its place, or the cut came before.
            while not (outcomes or self._stands()[2] or proxy.connections > 1):  # noqa: ASYNC110 - no event to be had
                await anyio.sleep(0.002)
            await other.release()
        return outcomes[0]

    async def _released(self, held: Held, proxy: Proxy) -> str:
        try:
            assert await held.release()
        except BackendUnavailable as exc:
            assert not held.valid
            return type(exc).__name__
        self.length = _passed(proxy)
        assert self._stands() == (None, 0, 0)
        return "released"

    def _holds(self, holder: str) -> None:
        seat, readers, _ = self._stands()
        assert seat is not None, "said to be held, but it is not"
        assert holder_of(seat) == holder or (seat == "readers" and readers == 1)

    def _stands(self) -> tuple[str | None, int, int]:
        seat, readers, places = self._server.ask_all(
            ("GET", self._base),
            ("ZCARD", f"{{{self._base}}}.readers"),
            ("ZCARD", f"{{{self._base}}}.queue"),
        )
        ticket = None if seat is None else seat.decode().rpartition(",")[0]
        return ticket, readers, places


def _passed(proxy: Proxy) -> int:
    return FAR - proxy._cut[1] if proxy._cut else 0


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize(
    ("operation", "stride"),
    [("wait", 2), ("release", 2), ("try", 16), ("read", 16), ("queue", 16)],
)
async def test_cut_at_every_byte(
    fresh_redis: RedisServer,
    anyio_backend_name: str,
    operation: Operation,
    side: Side,
    stride: int,
) -> None:
    """Every byte of acquire and release, the even ones on one loop and the odd ones on
    the other; of their variants, every byte that matters.

    A request that is not whole is not carried out, wherever it was cut.
    """
    outcomes: Counter[str] = Counter()
    longest, first = 0, int(anyio_backend_name == "trio")

    async def lane(counts: Iterator[int]) -> None:
        nonlocal longest
        for count in counts:
            case = Case(fresh_redis, operation, f"{count:07d}")
            outcomes[await case.run(side, count)] += 1
            longest = max(longest, case.length)

    async def each(counts: list[int], lanes: int) -> None:
        left = iter(counts)
        async with anyio.create_task_group() as group:
            for _ in range(lanes):
                group.start_soon(lane, left)

    await each([FAR], 1)  # how long it is; requests tell the name of their task
    assert set(outcomes) <= {"held", "released"}
    end = longest + SLACK
    counts = [n for n in range(end) if n % stride == first or n > longest - SLACK]
    await each(counts, LANES)
    assert outcomes.total() == len(counts) + 1
    assert outcomes["BackendUnavailable"] > 0
    assert outcomes["held"] + outcomes["released"] > 1
    assert set(outcomes) <= {"BackendUnavailable", "held", "lost", "released"}


async def test_nobody_can_tell(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost and the server out of reach: said so, and by whom."""
    monkeypatch.setattr(
        connection, "MAX_QUEUED_SECONDS", 0.3
    )  # how long a withdrawal waits
    with Proxy(fresh_redis.port) as proxy:
        async with connect(proxy.url, connect_timeout=2, lease=LEASE) as locks:
            proxy.cut_after(0, to="client")
            proxy.refuse()
            with pytest.raises(AcquireUncertain) as caught:
                await locks.mutex("cut", 1).acquire()
            assert caught.value.lease == LEASE
            (name,) = fresh_redis.ask("KEYS", "*}.state")
            assert caught.value.holder.encode() in fresh_redis.ask(
                "HGET", name, "writer"
            )
            proxy.accept()
            await entered(locks.mutex("cut", 1))
    assert left(client(fresh_redis.url)) == {}


async def entered(lock: Mutex) -> None:
    """As soon as the connection is there again."""
    with anyio.fail_after(20):
        while True:
            try:
                async with lock.acquire(timeout=10):
                    return
            except BackendUnavailable:
                await anyio.sleep(0.05)
