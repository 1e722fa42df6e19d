"""Connections to the primary that Sentinel names, also when it is mistaken."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    KeeperChannel,
    MainLoopChannel,
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import linked, renewal_channel
from tests.backends.redis.some_scripts import INCR
from tests.backends.redis.test_sentinel import LOCAL, says
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer
from tests.servers.sentinel import NAME, SentinelGroup
from tests.servers.strangers import stranger

pytestmark = pytest.mark.anyio


@contextmanager
def changing(*answers: bytes) -> Iterator[int]:
    """A Sentinel that changes its mind, once for each who asks; the last one stays."""
    server = socket.create_server((LOCAL, 0))

    def serve() -> None:
        replies = list(answers)
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(replies.pop(0) if len(replies) > 1 else replies[0])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


async def renewed(keeper: ThreadLoopChannel, timeout: float = 5) -> object:
    """What one renewal comes to; the keeper is called in a thread."""
    run = partial(keeper.run_many, [(INCR, (1, "k"))], timeout)
    return (await anyio.to_thread.run_sync(run))[0]


def through(port: int) -> str:
    return f"redis+sentinel://{LOCAL}:{port}/{NAME}/0"


@pytest.mark.parametrize("wrong", ["replica", "down", "silent"])
async def test_asked_again_while_it_names_the_wrong_one(
    start_redis: StartRedis, wrong: str
) -> None:
    primary, other = start_redis(), start_redis()
    if wrong == "replica":
        other.ask("REPLICAOF", LOCAL, primary.port)
    elif wrong == "down":
        other.kill()
    else:
        other.pause()
    answers = says(other.port, 1), says(primary.port, 2)
    with changing(*answers) as port:
        async with linked(through(port), connect_timeout=2) as link:
            assert await link.run(INCR, (1, "k"), int) == 1
    with changing(*answers) as port:
        keeper = renewal_channel(through(port))
        with pytest.raises(BackendUnavailable):
            await renewed(keeper, 0.5)
        assert await renewed(keeper) == 2
        await anyio.to_thread.run_sync(keeper.close)


async def test_a_replica_is_refused_in_the_end(start_redis: StartRedis) -> None:
    primary, replica = start_redis(), start_redis()
    replica.ask("REPLICAOF", LOCAL, primary.port)
    with (
        stranger(says(replica.port, 1)) as port,
        pytest.raises(BackendUnavailable, match="it is a replica"),
    ):
        await connect(through(port), connect_timeout=1)


async def test_the_keeper_leaves_a_primary_that_became_a_replica(
    start_redis: StartRedis,
) -> None:
    """READONLY: asked again, where the link's own hang-up does the same."""
    first, second = start_redis(), start_redis()
    with changing(says(first.port, 1), says(second.port, 2)) as port:
        keeper = renewal_channel(through(port))
        assert await renewed(keeper) == 1
        first.ask("CONFIG", "SET", "replica-read-only", "yes")
        first.ask("REPLICAOF", LOCAL, second.port)
        with pytest.raises(BackendUnavailable, match="READONLY"):
            await renewed(keeper)
        assert await renewed(keeper) == 1
        assert second.ask("GET", "k") == b"1"
        await anyio.to_thread.run_sync(keeper.close)


async def test_the_keeper_does_not_spend_a_lease_on_a_silent_server(
    start_redis: StartRedis,
) -> None:
    server: RedisServer = start_redis()
    keeper = renewal_channel(server.url, command_timeout=0.3)
    assert await renewed(keeper) == 1
    server.pause()
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        await renewed(keeper, 3600)
    server.resume()
    await anyio.to_thread.run_sync(keeper.close)


async def test_sentinels_that_forgot_the_primary_do_not_keep_us_from_renewing(
    start_redis: StartRedis,
) -> None:
    """Those that were reset, say: the connection that is there is good enough."""
    nil = b"*-1\r\n-ERR No such master with that name\r\n"
    server = start_redis()
    with stranger(nil) as port:
        async with linked(server.url) as link:
            host = current_event_loop()
            own = renewal_channel(through(port))
            batches = KeeperChannel(
                own,
                MainLoopChannel(Options(name=server.url), host, link.send_at_once),
                host.clock,
            )
            batch = [(INCR, (1, "k"))]
            assert await anyio.to_thread.run_sync(batches.run_many, batch, 5) == [1]
            await anyio.to_thread.run_sync(batches.close)


async def test_no_thread_to_ask_sentinel_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refused)
    with pytest.raises(BackendUnavailable, match="no thread could be started"):
        await connect(through(1))


async def test_examined_through_sentinel(sentinel_group: SentinelGroup) -> None:
    async with connect(sentinel_group.url) as locks:
        found = {finding.name: finding async for finding in locks.examine()}
    assert found["role"].value == "primary of 2 replicas"


async def test_cancelled_while_sentinel_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At once, and nothing is heard of it again."""
    with caplog.at_level(logging.WARNING), stranger(None) as port:
        with anyio.move_on_after(0.1) as scope:
            async with connect(through(port)):
                pass
        assert scope.cancelled_caught
    assert caplog.messages == []
