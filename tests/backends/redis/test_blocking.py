"""The keeper's connection: batches, deadlines, and opening again after a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    BlockingConnection,
)
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.backends.redis.some_scripts import BOTH, INCR, PUSH
from tests.servers.certificates import Certificates
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer


def opened(url: str) -> BlockingConnection:
    return BlockingConnection(options_of(parse(url)), SystemClock(), BOTH)


@pytest.fixture
def link(fresh_redis: RedisServer) -> Iterator[BlockingConnection]:
    link = opened(fresh_redis.url)
    yield link
    link.close()


def test_a_batch_in_order_with_errors_in_their_places(
    link: BlockingConnection, fresh_redis: RedisServer
) -> None:
    fresh_redis.ask("SET", "bad", "x")
    one, bad, two = link.run_many(
        [(INCR, (1, "k")), (INCR, (1, "bad")), (INCR, (1, "k"))], 5
    )
    assert (one, two) == (1, 2)
    assert isinstance(bad, BackendError)
    assert link.run_many([], 5) == []


def test_a_batch_is_one_write(fresh_redis: RedisServer) -> None:
    with Proxy(fresh_redis.port) as proxy:
        link = opened(proxy.url)
        link.run_many([(INCR, (1, "k"))], 5)
        before = len(proxy.chunks)
        assert link.run_many([(INCR, (1, "k"))] * 500, 5) == list(range(2, 502))
        assert len(proxy.chunks) - before == 1
        link.close()


def test_forgotten_scripts_are_run_again(
    link: BlockingConnection, fresh_redis: RedisServer
) -> None:
    assert link.run_many([(INCR, (1, "k"))], 5) == [1]
    fresh_redis.ask("SCRIPT", "FLUSH")
    batch = [(INCR, (1, "k")), (PUSH, (1, "list", "x")), (INCR, (1, "k"))]
    assert link.run_many(batch, 5) == [2, 1, 3]


def test_opens_again_after_a_lost_connection(fresh_redis: RedisServer) -> None:
    """Nobody knows what became of what was sent, so it is not sent again."""
    with Proxy(fresh_redis.port) as proxy:
        link = opened(proxy.url)
        assert link.run_many([(INCR, (1, "k"))], 5) == [1]
        proxy.cut_after(0, to="client")
        with pytest.raises(BackendUnavailable):
            link.run_many([(INCR, (1, "k"))], 5)
        assert link.run_many([(INCR, (1, "k"))], 5) == [3]
        link.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_was_closed_while_idle_is_not_used(
    start_redis: StartRedis, certificates: Certificates, tls: bool
) -> None:
    """By the server's ``timeout``, CLIENT KILL or a restart: no batch is lost by it."""
    server = start_redis(certificates=certificates)
    link = opened(server.tls_url if tls else server.url)
    assert link.run_many([(INCR, (1, "k"))], 5) == [1]
    assert link.run_many([(INCR, (1, "k"))], 5) == [2]
    before = server.ask("CLIENT", "ID")
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    assert link.run_many([(INCR, (1, "k"))], 5) == [3]
    assert link.run_many([(INCR, (1, "k"))], 5) == [4]
    assert server.ask("CLIENT", "ID") - before == 3  # it was opened again once
    server.restart()
    assert link.run_many([(INCR, (1, "k"))], 5) == [1]
    link.close()


def test_gives_up_in_time_and_mixes_up_no_answers(start_redis: StartRedis) -> None:
    server = start_redis()
    link = opened(server.url)
    link.run_many([(INCR, (1, "late"))], 5)
    server.pause()
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        link.run_many([(INCR, (1, "late"))], 0.3)
    server.resume()
    assert link.run_many([(PUSH, (1, "list", "x"))], 5) == [1]
    link.close()


def test_a_peer_that_stops_speaking_redis(fresh_redis: RedisServer) -> None:
    with Proxy(fresh_redis.port) as proxy:
        link = opened(proxy.url)
        link.run_many([(INCR, (1, "k"))], 5)
        assert link._socket is not None
        link._reader.feed(b"nonsense\r\n")
        with pytest.raises(Unsupported, match="does not speak"):
            link.run_many([(INCR, (1, "k"))], 5)
        assert link._socket is None


def test_no_time_left_is_no_answer(link: BlockingConnection) -> None:
    assert link.run_many([(INCR, (1, "k"))], 5) == [1]
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        link.run_many([(INCR, (1, "k"))], 0.0)


def test_refused_at_the_door_it_knocks_again(start_redis: StartRedis) -> None:
    server = start_redis(users=["bob on >old ~* &* +@all"])
    link = opened(f"redis://bob:new@127.0.0.1:{server.port}")
    for _ in range(2):
        with pytest.raises(Unsupported, match="password"):
            link.run_many([(INCR, (1, "k"))], 5)
    server.ask("ACL", "SETUSER", "bob", ">new")
    assert link.run_many([(INCR, (1, "k"))], 5) == [1]
    link.close()
