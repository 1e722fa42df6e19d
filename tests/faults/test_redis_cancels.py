"""A thousand random cancellations behind a jittery link leave nothing in Redis."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.backends.redis.store import RedisStore, open_store
from aiorwlock_remote.core.commands import Command, Reply, Withdraw, Withdrawn
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import (
    Backend,
    EventLoop,
    Pending,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.runtime import lease
from tests.faults import redis_cancels
from tests.faults.redis_cancels import Probe
from tests.faults.redis_seats import Plain
from tests.faults.redis_turns import Attempt
from tests.faults.test_redis_cut_connections import entered
from tests.loops import LOOPS
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio

SEED = 4


async def test_a_thousand_cancellations(
    redis_server: RedisServer, anyio_backend: tuple[str, dict[str, Any]]
) -> None:
    """Seats, readers and queues are looked at after every 250 of them."""
    native = anyio_backend[0] == "asyncio"
    report = await redis_cancels.probe(redis_server, 1000, SEED, native=native)
    assert report.faults() == []
    assert report.cancels >= 1000
    assert report.phases["acquire"] >= 300
    assert report.phases["release"] >= 100
    assert len(report.ways) == (5 if native else 2)
    assert min(report.ways.values()) >= 100


@pytest.mark.parametrize(
    "anyio_backend", [loop for loop in LOOPS if str(loop.id) != "trio"]
)
async def test_cancellations_over_a_users_client(redis_server: RedisServer) -> None:
    """Its pool, its retries and its way with a cancelled command are not used."""

    def opens(url: str) -> Backend:
        client: Redis = Redis.from_url(url, max_connections=1)
        return RedisBackend(client)

    report = await redis_cancels.probe(
        redis_server, 500, SEED, native=True, opens=opens
    )
    assert report.faults() == []
    assert report.cancels >= 500
    assert len(report.ways) == 5


class Forgetful:
    """A backend that never sends one kind of command."""

    def __init__(self, kind: type[Command], url: str) -> None:
        self._kind = kind
        self._url = url

    async def open(
        self, host: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> RedisStore:
        store = await open_store(parse(self._url), host, wake, settings)
        step = store.step

        def forget(resource: Resource, command: Command) -> Pending[Reply]:
            if not isinstance(command, self._kind):
                return step(resource, command)
            forgotten: Pending[Reply] = Pending()
            forgotten.set_result(Withdrawn())
            return forgotten

        store.step = forget  # type: ignore[method-assign]
        return store


async def test_the_probe_sees_what_is_not_withdrawn(redis_server: RedisServer) -> None:
    """The control: without withdrawals, grants and places are left behind."""
    opens = partial(Forgetful, Withdraw)
    report = await redis_cancels.probe(
        redis_server, 100, SEED, native=False, opens=opens
    )
    (found, *_) = report.left
    kinds = {kind for seat in found.values() for kind in seat}
    assert kinds >= {"seat", "places"}


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_the_probe_sees_what_is_swallowed(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a turn that takes a cancellation for the end of its wait."""
    entered = Attempt._entered

    async def swallow(self: Attempt) -> None:
        with suppress(asyncio.CancelledError):
            await entered(self)

    monkeypatch.setattr(Attempt, "_entered", swallow)
    monkeypatch.setattr(redis_cancels, "PATIENCE", 0.2)
    report = await redis_cancels.probe(redis_server, 100, SEED, native=True)
    assert report.swallowed > 0


@pytest.mark.only_on("trio", "how connections are counted is no matter of loops")
async def test_the_probe_sees_a_lost_connection(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a server that ends all connections when the probe is done."""
    run = Probe.run

    async def killed(self: Probe, cancels: int, plain: Plain) -> None:
        await run(self, cancels, plain)
        plain.client_kill_filter(_type="pubsub")
        for locks in self.all_locks:
            await entered(locks.mutex("after", 1))  # over the next connection

    monkeypatch.setattr(Probe, "run", killed)
    report = await redis_cancels.probe(redis_server, 20, SEED, native=False)
    assert report.faults() == [f"connections lost: {redis_cancels.LOCKS}"]


@pytest.mark.only_on("asyncio", "how connections are counted is no matter of loops")
async def test_a_connection_of_the_keeper_is_none_that_was_lost(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine the keeper renews a grant by message, if it is not confirmed
    in time: over a connection of its own.
    """
    monkeypatch.setattr(lease, "RENEWALS_PER_LEASE", 10_000)
    lines: list[Proxy] = []

    def noted(*args: int, **options: Any) -> Proxy:  # noqa: ANN401 - passed on
        lines.append(Proxy(*args, **options))
        return lines[-1]

    monkeypatch.setattr(redis_cancels, "Proxy", noted)
    report = await redis_cancels.probe(redis_server, 100, SEED, native=False)
    assert sum(line.connections for line in lines) > redis_cancels.LOCKS
    assert report.faults() == []
