"""The keeper's batches: on a loop of its own, or on the user's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis.clients.connections import client_connections
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    MainLoopChannel,
    ThreadLoopChannel,
)
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import (
    CLOCK_ONLY,
    Heard,
    killed,
    renewal_channel,
)
from tests.backends.redis.some_scripts import BOTH, INCR, PUSH
from tests.servers.certificates import Certificates
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

Opened = Callable[..., ThreadLoopChannel]


def of_url(url: str, silence: float = 5.0) -> ThreadLoopChannel:
    """``silence``: seconds after which a server that says nothing counts as lost."""
    return renewal_channel(url, command_timeout=silence)


def of_client(url: str, silence: float | None = None) -> ThreadLoopChannel:
    for ours, theirs in (("ca_file", "ca_certs"), ("cert_", "cert"), ("key_", "key")):
        url = url.replace(ours, f"ssl_{theirs}")
    client: Redis = Redis.from_url(url, socket_timeout=silence)
    options, factory = client_connections(client.connection_pool, 5.0)
    dial = factory.dial(None, in_thread=True)
    return ThreadLoopChannel(options, CLOCK_ONLY, BOTH, dial)


@pytest.fixture(params=[of_url, of_client])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Opens channels, and closes them in the end."""
    made = list[ThreadLoopChannel]()

    def new(*args: str | float) -> ThreadLoopChannel:
        made.append(request.param(*args))
        return made[-1]

    yield new
    for channel in made:
        channel.close()


def test_a_batch_in_order_with_errors_in_their_places(
    opened: Opened, fresh_redis: RedisServer
) -> None:
    fresh_redis.ask("SET", "bad", "x")
    batches = opened(fresh_redis.url)
    one, bad, two = batches.run_many(
        [(INCR, (1, "k")), (INCR, (1, "bad")), (INCR, (1, "k"))], 5
    )
    assert (one, two) == (1, 2)
    assert isinstance(bad, BackendError)
    assert batches.run_many([], 5) == []


def test_a_batch_is_one_write(opened: Opened, fresh_redis: RedisServer) -> None:
    with Proxy(fresh_redis.port) as proxy:
        batches = opened(proxy.url)
        batches.run_many([(INCR, (1, "k"))], 5)
        before = len(proxy.chunks)
        assert batches.run_many([(INCR, (1, "k"))] * 500, 5) == list(range(2, 502))
        assert len(proxy.chunks) - before == 1
        batches.close()


def test_forgotten_scripts_are_run_again(
    opened: Opened, fresh_redis: RedisServer
) -> None:
    batches = opened(fresh_redis.url)
    assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
    fresh_redis.ask("SCRIPT", "FLUSH")
    batch = [(INCR, (1, "k")), (PUSH, (1, "list", "x")), (INCR, (1, "k"))]
    assert batches.run_many(batch, 5) == [2, 1, 3]


def test_a_lost_reply_is_not_repeated(opened: Opened, fresh_redis: RedisServer) -> None:
    """Nobody knows what became of what was sent. The next batch connects again."""
    with Proxy(fresh_redis.port) as proxy:
        batches = opened(proxy.url)
        assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
        proxy.cut_after(0, to="client")
        with pytest.raises(BackendUnavailable):
            batches.run_many([(INCR, (1, "k"))], 5)
        assert batches.run_many([(INCR, (1, "k"))], 5) == [3]
        batches.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_was_closed_while_idle_is_not_used(
    opened: Opened, start_redis: StartRedis, certificates: Certificates, tls: bool
) -> None:
    """By the server's ``timeout``, CLIENT KILL or a restart: no batch is lost by it."""
    server = start_redis(certificates=certificates)
    batches = opened(server.tls_url if tls else server.url)
    assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
    assert batches.run_many([(INCR, (1, "k"))], 5) == [2]
    before = server.ask("CLIENT", "ID")
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    assert batches.run_many([(INCR, (1, "k"))], 5) == [3]
    assert batches.run_many([(INCR, (1, "k"))], 5) == [4]
    assert server.ask("CLIENT", "ID") - before == 3  # it was opened again once
    server.restart()
    assert batches.run_many([(INCR, (1, "k"))], 5) == [1]


def test_gives_up_in_time_and_mixes_up_no_answers(
    opened: Opened, start_redis: StartRedis
) -> None:
    server = start_redis()
    batches = opened(server.url)
    batches.run_many([(INCR, (1, "late"))], 5)
    server.pause()
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        batches.run_many([(INCR, (1, "late"))], 0.3)
    server.resume()
    assert batches.run_many([(PUSH, (1, "list", "x"))], 5) == [1]


def test_a_connection_without_answer_is_left(
    opened: Opened, start_redis: StartRedis
) -> None:
    server = start_redis()
    batches = opened(server.url)
    batches.run_many([(INCR, (1, "k"))], 5)
    before = batches._protocol
    server.pause()
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        batches.run_many([(INCR, (1, "k"))], 0.3)
    server.resume()
    batches.run_many([(INCR, (1, "k"))], 5)
    assert batches._protocol is not before


def test_a_silent_server_does_not_cost_the_whole_lease(
    opened: Opened, start_redis: StartRedis
) -> None:
    """There may be time left to renew at the server that takes its place."""
    server = start_redis()
    batches = opened(server.url, 0.2)
    batches.run_many([(INCR, (1, "k"))], 5)
    server.pause()
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        batches.run_many([(INCR, (1, "k"))], 3600)
    server.resume()
    assert batches.run_many([(PUSH, (1, "list", "x"))], 5) == [1]


def test_a_peer_that_stops_speaking_redis(
    opened: Opened, fresh_redis: RedisServer
) -> None:
    batches = opened(fresh_redis.url)
    batches.run_many([(INCR, (1, "k"))], 5)
    assert batches._protocol is not None
    batches._protocol._reader.feed(b"nonsense\r\n")
    with pytest.raises(Unsupported, match="does not speak"):
        batches.run_many([(INCR, (1, "k"))], 5)
    assert batches.run_many([(INCR, (1, "k"))], 5) == [3]


def test_no_time_left_is_no_answer(opened: Opened, fresh_redis: RedisServer) -> None:
    batches = opened(fresh_redis.url)
    assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        batches.run_many([(INCR, (1, "k"))], 0.0)


def test_a_refused_connection_is_tried_again(
    opened: Opened, start_redis: StartRedis
) -> None:
    server = start_redis(users=["bob on >old ~* &* +@all"])
    batches = opened(f"redis://bob:new@127.0.0.1:{server.port}")
    for _ in range(2):
        with pytest.raises(Unsupported, match="password"):
            batches.run_many([(INCR, (1, "k"))], 5)
    server.ask("ACL", "SETUSER", "bob", ">new")
    assert batches.run_many([(INCR, (1, "k"))], 5) == [1]


# ------------------------------------------------------------ on the user's loop


async def on_the_users_loop(url: str) -> tuple[MainLoopChannel, RedisConnection]:
    client: Redis = Redis.from_url(url)
    options, factory = client_connections(client.connection_pool, 5.0)
    host, heard = current_event_loop(), Heard()
    link = RedisConnection(
        options,
        host,
        BOTH,
        on_message=heard.message,
        on_reconnect=heard.reconnected,
        dial=factory.dial(None),
    )
    await link.open()
    return MainLoopChannel(options, host, link.send_at_once), link


def test_on_the_users_loop_in_order_with_errors_in_their_places(
    fresh_redis: RedisServer,
) -> None:
    async def run() -> None:
        batches, link = await on_the_users_loop(fresh_redis.url)
        batch = [(INCR, (1, "k")), (INCR, (1, "bad")), (INCR, (1, "k"))]
        one, bad, two = await asyncio.to_thread(batches.run_many, batch, 5)
        batches.close()
        assert (one, two) == (1, 2)
        assert isinstance(bad, BackendError)
        assert await link.call("PING") == b"PONG"  # still open: it is the store's
        await link.aclose()

    fresh_redis.ask("SET", "bad", "x")
    asyncio.run(run())


def test_without_a_connection_nothing_is_renewed_late(start_redis: StartRedis) -> None:
    """Each fails at once: there may be another way, and the lease may end first."""
    server = start_redis()

    async def run() -> None:
        batches, link = await on_the_users_loop(server.url)
        await killed(server, link)
        (outcome,) = await asyncio.to_thread(batches.run_many, [(INCR, (1, "k"))], 60)
        assert isinstance(outcome, BackendUnavailable)
        assert outcome.nothing_done
        server.start()
        assert await link.call("GET", "k") is None
        await link.aclose()

    asyncio.run(run())


def test_a_loop_that_is_busy_renews_nothing_and_nothing_late(
    fresh_redis: RedisServer,
) -> None:
    """What was given up is not sent once the loop comes round."""
    errors: list[Exception] = []

    def renew(batches: MainLoopChannel) -> None:
        try:
            batches.run_many([(INCR, (1, "k"))], 0.1)
        except BackendUnavailable as exc:
            errors.append(exc)

    async def run() -> None:
        batches, link = await on_the_users_loop(fresh_redis.url)
        thread = threading.Thread(target=renew, args=(batches,))
        thread.start()
        thread.join()  # the loop is blocked meanwhile
        assert "event loop was busy" in str(errors)
        await asyncio.sleep(0)
        assert await link.call("GET", "k") is None
        await link.aclose()

    asyncio.run(run())
