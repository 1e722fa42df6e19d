"""The keeper gives up a renewal that a server does not answer: it is to be closed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis.clients.connections import client_connections
from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, SlotMap
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    MainLoopChannel,
    RenewalChannel,
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import CLOCK_ONLY, renewal_channel
from tests.backends.redis.some_scripts import BOTH, INCR
from tests.servers.fix_redis import StartRedis

LONG = 60.0
"""Seconds: more than a test may take."""
PATIENT = f"command_timeout={LONG:g}"


@dataclass
class Silent:
    """A server that takes connections and says nothing."""

    listener: socket.socket
    called: threading.Event = field(default_factory=threading.Event)
    taken: list[socket.socket] = field(default_factory=list[socket.socket])

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Until the listener is closed."""
        try:
            while True:
                sock, _ = self.listener.accept()
                self.taken.append(sock)
                sock.recv(1)  # now it is waited for an answer
                self.called.set()
        except OSError:
            return


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Silent(listener)
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for sock in server.taken:
        sock.close()


def plain(port: int) -> RenewalChannel:
    return renewal_channel(f"redis://127.0.0.1:{port}?{PATIENT}", LONG)


def over_tls(port: int) -> RenewalChannel:
    """Where the server is silent in the handshake."""
    return renewal_channel(f"rediss://127.0.0.1:{port}?{PATIENT}", LONG)


def of_a_cluster(port: int) -> RenewalChannel:
    options = options_of(
        parse(f"redis+cluster://127.0.0.1:{port}?{PATIENT}"), connect_timeout=LONG
    )
    slots = SlotMap([("127.0.0.1", port)])
    slots.owners = [("127.0.0.1", port)] * SLOTS
    return ClusterRenewalChannel(options, CLOCK_ONLY, BOTH, slots, lambda _: None)


def of_a_client(port: int) -> RenewalChannel:
    client: Redis = Redis.from_url(f"redis://127.0.0.1:{port}", socket_timeout=LONG)
    options, factory = client_connections(client.connection_pool, LONG)
    dial = factory.dial(None, in_thread=True)
    return ThreadLoopChannel(options, CLOCK_ONLY, BOTH, dial)


def on_a_loop_that_is_busy(port: int) -> RenewalChannel:
    """A user's loop; this one has ended."""

    async def here() -> MainLoopChannel:
        link: Any = None  # never asked
        options = Options(host="127.0.0.1", port=port)
        return MainLoopChannel(options, current_event_loop(), link)

    return asyncio.run(here())


def outcome(batches: RenewalChannel) -> object:
    """Of one batch."""
    try:
        (result,) = batches.run_many([(INCR, (1, b"k"))], LONG)
    except BackendUnavailable as exc:
        return exc
    return result


def given_up(batches: RenewalChannel, begun: threading.Event) -> object:
    """What a batch comes to that is given up when it has begun."""
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(outcome(batches)))
    thread.start()
    try:
        assert begun.wait(LONG)
        batches.give_up()
        thread.join(LONG / 3)
    finally:
        batches.close()
        thread.join()
    (only,) = outcomes
    return only


@pytest.mark.parametrize("opened", [plain, over_tls, of_a_cluster, of_a_client])
def test_an_abort_during_the_renewal(
    silent: Silent, opened: Callable[[int], RenewalChannel]
) -> None:
    assert isinstance(given_up(opened(silent.port), silent.called), BackendUnavailable)


def test_on_a_busy_loop() -> None:
    begun = threading.Event()
    begun.set()
    assert isinstance(given_up(on_a_loop_that_is_busy(1), begun), BackendUnavailable)


@pytest.mark.parametrize("opened", [plain, of_a_cluster, of_a_client])
def test_after_it_was_connected(
    start_redis: StartRedis, opened: Callable[[int], RenewalChannel]
) -> None:
    server = start_redis()
    batches = opened(server.port)
    assert outcome(batches) == 1
    server.pause()
    begun = threading.Event()
    begun.set()
    assert isinstance(given_up(batches, begun), BackendUnavailable)
    server.resume()


@pytest.mark.parametrize(
    "opened", [plain, over_tls, of_a_cluster, of_a_client, on_a_loop_that_is_busy]
)
def test_an_abort_before_the_renewal(
    silent: Silent, opened: Callable[[int], RenewalChannel]
) -> None:
    """What is begun after it fails, and so does not wait either."""
    batches = opened(silent.port)
    batches.give_up()
    assert isinstance(outcome(batches), BackendUnavailable)
    batches.close()


@pytest.mark.parametrize("opened", [plain, of_a_client])
def test_the_end_of_one_batch_is_not_that_of_the_next(
    start_redis: StartRedis, opened: Callable[[int], Any]
) -> None:
    """An ``abort`` that comes between two ends the connection, which is made anew."""
    channel = opened(start_redis().port)
    channel.abort()
    assert outcome(channel) == 1
    channel.abort()
    assert outcome(channel) == 2
    channel.close()
    channel.abort()


def test_a_connection_that_is_gone_when_its_batch_begins(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for replies to what could not be sent."""
    channel: Any = plain(start_redis().port)
    channel.open(5)
    protocol = channel._protocol
    channel.abort()
    channel._runner.run(asyncio.sleep(0.01))
    monkeypatch.setattr(channel, "_ensure_open", lambda _: protocol)
    assert "closed the connection" in str(outcome(channel))
    channel.close()
