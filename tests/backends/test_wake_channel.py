"""``connect(wake=…)``: hints among the clients of a store that polls."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import anyio
import psycopg
import pytest

from aiorwlock_remote import BackendError, Closed, ConfigurationError, Locks, connect
from aiorwlock_remote.backends.mariadb.store import MariadbStore
from aiorwlock_remote.cas.poller import PollIntervals
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.ports import WAKE_CHANNEL
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.cancelled_tasks import cancel_all_others
from tests.forked_children import exit_code, fork
from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]

PATIENCE = 30.0
LONG = 600.0
"""Seconds between polls: who gets in before was woken."""


@pytest.fixture
def _no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    never = PollIntervals(near=LONG, far=LONG, hinted=LONG)
    monkeypatch.setattr(MariadbStore, "poll_intervals", never)
    monkeypatch.setattr("aiorwlock_remote.cas.poller.SHORTEST_PAUSE", LONG)
    poll_policy = replace(
        MariadbStore.poll_policy, poll_min=LONG, poll_max=LONG, entry_ttl=3 * LONG
    )
    monkeypatch.setattr(MariadbStore, "poll_policy", poll_policy)


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


def state(locks: Locks) -> str:
    return locks.statistics().connections[WAKE_CHANNEL].partition(":")[0].split(" ")[0]


async def is_there(*clients: Locks) -> None:
    await wait_until(lambda: all(state(one) == "open" for one in clients), PATIENCE)


async def hand_over(one: Locks, other: Locks, turns: int = 3) -> None:
    """From one client to the other one and back, so many times."""
    for giver, taker in ((one, other), (other, one)) * turns:
        entered = anyio.Event()
        async with anyio.create_task_group() as tasks:
            async with giver.mutex("order", 1):
                tasks.start_soon(enter, taker, entered)
                await has_queue(giver)
            with anyio.fail_after(PATIENCE):
                await entered.wait()


async def enter(locks: Locks, entered: anyio.Event) -> None:
    async with locks.mutex("order", 1):
        entered.set()


async def has_queue(locks: Locks) -> None:
    async def queued() -> bool:
        return bool((await locks.mutex("order", 1).info()).queue)

    await wait_until(queued, PATIENCE)


@asynccontextmanager
async def both(url: str, wake: str) -> AsyncIterator[tuple[Locks, Locks]]:
    in_url = f"{url}?wake={quote(wake, safe='')}"
    async with connect(url, wake=wake) as one, connect(in_url) as other:
        await is_there(one, other)
        yield one, other


@pytest.mark.usefixtures("_no_polls")
async def test_hints_over_redis(mariadb_tables: str, redis_server: RedisServer) -> None:
    async with both(mariadb_tables, f"{redis_server.url}?prefix=any") as (one, other):
        await hand_over(one, other)
        assert not one.statistics().wakeups["poll"]


@pytest.mark.usefixtures("_no_polls")
async def test_hints_over_postgresql(mariadb_tables: str, database: str) -> None:
    """No table is needed there."""
    async with both(mariadb_tables, database) as (one, other):
        await hand_over(one, other)


async def test_a_connection_to_postgresql_that_goes_and_comes(
    mariadb_tables: str, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiorwlock_remote")
    async with connect(mariadb_tables, wake=database) as one:
        await is_there(one)
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await wait_until(lambda: len(caplog.messages) == 2, PATIENCE)
        assert state(one) == "open"
    assert [line.split()[0] for line in caplog.messages] == [
        *("wake_channel_lost", "wake_channel_back")
    ]


def test_a_program_that_cancels_all_its_tasks(
    mariadb_tables: str, database: str
) -> None:
    """It may go on: waiters poll until a hint has started the channel again."""

    async def program() -> None:
        async with both(mariadb_tables, database) as (one, other):
            for _ in range(2):
                await cancel_all_others()
                assert state(one) == state(other) == "lost"
                await hand_over(one, other)
                await is_there(one, other)

    asyncio.run(program())


@pytest.mark.usefixtures("_no_polls")
async def test_hints_over_a_cluster(
    mariadb_tables: str, redis_cluster: Cluster
) -> None:
    """The clients may be at different nodes."""
    hosts = redis_cluster.url.removeprefix("redis+cluster://").split(",")
    wake, turned = (
        f"redis+cluster://{','.join(order)}" for order in (hosts, hosts[::-1])
    )
    async with (
        connect(mariadb_tables, wake=wake) as one,
        connect(mariadb_tables, wake=turned) as other,
    ):
        await is_there(one, other)
        await hand_over(one, other)


@pytest.mark.usefixtures("_no_polls")
async def test_hints_over_tls(
    mariadb_tables: str, start_redis: StartRedis, certificates: Certificates
) -> None:
    server = start_redis(certificates=certificates)
    async with both(mariadb_tables, server.tls_url) as (one, other):
        await hand_over(one, other)


@pytest.mark.usefixtures("_no_polls")
async def test_all_readers_are_hinted(
    mariadb_tables: str, redis_server: RedisServer
) -> None:
    async def read(locks: Locks) -> None:
        async with locks.rwlock("order", 1).reader:
            pass

    async with (
        both(mariadb_tables, redis_server.url) as (one, other),
        anyio.create_task_group() as tasks,
        one.rwlock("order", 1).writer,
    ):
        for _ in range(5):
            tasks.start_soon(read, other)
        await has_queue(one)


@pytest.mark.usefixtures("_no_polls")
async def test_a_release_is_not_refused(
    mariadb_tables: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The holder learns who joins the queue: then it knows the version to change."""
    entered = anyio.Event()
    async with (
        both(mariadb_tables, redis_server.url) as (one, other),
        anyio.create_task_group() as tasks,
    ):
        store: Any = one._session.client.store
        steps = store.steps

        def knows_the_queue() -> bool:
            known = steps.known(resource("order", 1))
            return bool(known.record.queue)

        async with one.mutex("order", 1):
            tasks.start_soon(enter, other, entered)
            await wait_until(knows_the_queue, PATIENCE)
            caplog.set_level(logging.DEBUG, "aiorwlock_remote.store")
        await entered.wait()
    assert "turn_found" in caplog.text
    assert "swap_retried" not in caplog.text


@pytest.mark.usefixtures("renewed_often")
async def test_a_lease_is_renewed_beside_the_channel(
    mariadb_tables: str, redis_server: RedisServer
) -> None:
    async with both(mariadb_tables, redis_server.url) as (one, _):
        async with one.mutex("order", 1, lease=3.0) as held:
            renewed = lambda: one.statistics().renewals_sent > 1  # noqa: E731
            await wait_until(renewed, PATIENCE)
            held.check()
        assert not one.statistics().renewals_failed


async def test_a_channel_that_goes_and_comes(
    mariadb_tables: str,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line when it is gone and one when it is back; meanwhile waiters poll."""
    caplog.set_level(logging.INFO, "aiorwlock_remote")
    async with (
        connect(mariadb_tables, wake=proxy.url) as one,
        connect(mariadb_tables) as other,
    ):
        await is_there(one)
        assert not caplog.messages
        proxy.refuse()
        proxy.cut()
        await wait_until(lambda: state(one) == "lost", PATIENCE)
        await hand_over(one, other, 1)
        await anyio.sleep(0.5)  # it tries again, in vain
        proxy.accept()
        await is_there(one)
    lost, back = caplog.messages
    where = f"server=127.0.0.1:{proxy.port}"
    assert lost.startswith(f"wake_channel_lost {where} error=")
    assert back == f"wake_channel_back {where}"
    # While the channel is away the polls are as short as ever.
    assert PollIntervals().near < PollIntervals().hinted


@pytest.mark.usefixtures("_no_polls")
async def test_releases_during_an_outage_of_the_channel_are_found(
    mariadb_tables: str, proxy: Proxy
) -> None:
    """A release during the outage is found when the outage begins or ends."""
    entered = anyio.Event()
    async with (
        connect(mariadb_tables, wake=proxy.url) as one,
        connect(mariadb_tables) as silent,
        anyio.create_task_group() as tasks,
    ):
        await is_there(one)
        async with silent.mutex("order", 1):
            tasks.start_soon(enter, one, entered)
            await has_queue(silent)
            proxy.refuse()
            proxy.cut()
            await wait_until(lambda: state(one) == "lost", PATIENCE)
        proxy.accept()
        with anyio.fail_after(PATIENCE):
            await entered.wait()


async def test_a_channel_that_is_away_keeps_nobody_out(
    mariadb_tables: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(redis_server.port) as proxy:
        proxy.refuse()
        async with connect(mariadb_tables, wake=proxy.url) as one:
            assert state(one) == "lost"
            (waiting,) = [f async for f in one.examine() if f.name == "waiting"]
            assert waiting.rating == "bad"
            assert "lost: waiters poll" in waiting.value
            proxy.accept()
            await is_there(one)
            (waiting,) = [f async for f in one.examine() if f.name == "waiting"]
            assert waiting.rating == "good"
    assert [line for line in caplog.messages if "wake_channel_lost" in line]


async def test_a_silent_channel_is_noticed_when_a_hint_is_missed(
    mariadb_tables: str, proxy: Proxy
) -> None:
    wake = f"{proxy.url}?command_timeout=0.5"
    async with (
        connect(mariadb_tables, wake=wake) as one,
        connect(mariadb_tables) as silent,
    ):
        await is_there(one)
        proxy.black_hole(on=True)
        await hand_over(silent, one, 1)
        await wait_until(lambda: state(one) == "lost", PATIENCE)
        proxy.black_hole(on=False)
        await is_there(one)


@pytest.mark.usefixtures("_no_polls")
async def test_forged_messages_cost_a_read_and_grant_nothing(
    mariadb_tables: str, redis_server: RedisServer
) -> None:
    """Forged, damaged and doubled hints let nobody in."""
    entered = anyio.Event()
    async with (
        both(mariadb_tables, redis_server.url) as (one, other),
        anyio.create_task_group() as tasks,
    ):
        async with one.mutex("order", 1) as held:
            tasks.start_soon(enter, other, entered)
            await has_queue(one)
            channels = redis_server.ask("PUBSUB", "CHANNELS", "rwlock.wake/*")
            forged = (b"", b"[", b"7", b'["order"]', b'["order", "1"]', b"\xff")
            for channel in channels:
                for payload in (*forged, *[b'["order", 1]'] * 20):
                    redis_server.ask("PUBLISH", channel, payload)
            await anyio.sleep(0.1)
            assert not entered.is_set()
            held.check()
        with anyio.fail_after(PATIENCE):
            await entered.wait()


async def test_a_fork_leaves_the_channel_alone(
    mariadb_tables: str, redis_server: RedisServer
) -> None:
    async with both(mariadb_tables, redis_server.url) as (one, other):
        child = fork()
        if child == 0:
            store = one._session.client.store
            refused = store.step(resource("order", 1), Release("x"))
            is_idle = not store.hints_come and not store.connections()
            os._exit(7 if is_idle and isinstance(refused.error, Closed) else 1)
        assert exit_code(child) == 7
        await hand_over(one, other, 1)


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
async def test_closing_closes_the_channel(
    kind: str, mariadb_tables: str, database: str, start_redis: StartRedis
) -> None:
    server = start_redis()
    wake = server.url if kind == "redis" else database
    async with both(mariadb_tables, wake) as (one, _):
        assert WAKE_CHANNEL in one.statistics().connections
        assert connections(kind, server, database) == 2
    await wait_until(lambda: connections(kind, server, database) == 0, PATIENCE)


def connections(kind: str, server: RedisServer, database: str) -> int:
    """How many clients are connected, except the one that asks."""
    if kind == "redis":
        found: int = server.ask("CLIENT", "LIST", "TYPE", "pubsub").count(b"id=")
        return found
    with psycopg.connect(database) as admin:
        ((count,),) = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
    return int(count)


async def test_a_wrong_password_is_reported_and_not_shown(
    mariadb_tables: str,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "aiorwlock_remote")
    wrong = f"redis://nobody:s3cret-s3cret@127.0.0.1:{redis_server.port}/0"
    with pytest.raises(BackendError) as caught:
        await connect(mariadb_tables, wake=wrong)
    connecting = connect(f"{mariadb_tables}?wake={wrong}")
    with pytest.raises(ConfigurationError, match="another one") as differ:
        await connect(f"{mariadb_tables}?wake={wrong}", wake="redis://elsewhere")
    texts = [str(caught.value), str(differ.value), repr(connecting), caplog.text]
    assert "s3cret" not in "".join(texts)


async def test_the_right_to_publish_is_needed(
    mariadb_tables: str, start_redis: StartRedis
) -> None:
    """The documented rights are enough; without that to publish ``connect`` fails."""
    rights = "resetkeys resetchannels &rwlock.wake/* -@all +subscribe +info"
    server = start_redis(
        users=[
            f"hints on >secret {rights} +publish",
            f"deaf on >secret {rights}",
        ]
    )
    at = f"127.0.0.1:{server.port}"
    async with both(mariadb_tables, f"redis://hints:secret@{at}") as (one, other):
        await hand_over(one, other, 1)
    with pytest.raises(BackendError, match="publish"):
        await connect(mariadb_tables, wake=f"redis://deaf:secret@{at}")


@pytest.mark.parametrize(
    ("url", "wake", "said"),
    [
        ("memory://", "redis://127.0.0.1:1", "by itself"),
        ("sqlite:///{folder}/l.db", "redis://127.0.0.1:1", "by itself"),
        ("{mariadb}", "sqlite:///locks.db", "carries no hints"),
        ("{mariadb}", "nonsense", "scheme"),
        ("{mariadb}", "redis://127.0.0.1:1?min_replicas=1", "no min_replicas"),
        ("{mariadb}", "redis://127.0.0.1:1?color=red", "unknown option"),
        ("{mariadb}", "postgresql://127.0.0.1:1/db?listen=no", "listen=no"),
    ],
)
async def test_senseless_wake_urls_are_refused(
    url: str, wake: str, said: str, mariadb_tables: str, tmp_path: object
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await connect(url.format(mariadb=mariadb_tables, folder=tmp_path), wake=wake)


async def test_postgresql_takes_hints_only_if_it_does_not_listen(
    tables: str, redis_server: RedisServer
) -> None:
    with pytest.raises(ConfigurationError, match="by NOTIFY; listen=no"):
        await connect(tables, wake=redis_server.url)
    sign = "&" if "?" in tables else "?"
    url = f"{tables}{sign}listen=no"
    async with (
        connect(url, wake=redis_server.url) as one,
        connect(url, wake=redis_server.url) as other,
    ):
        await is_there(one, other)
        await hand_over(one, other, 1)
