"""What is particular to trio: system tasks, and runs that end before their links."""

from __future__ import annotations

import gc
import socket

import pytest
import trio
import trio.testing

from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.connection.trio_transport import PlainTrioTransport
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.fake_transport import RecordingHandler
from tests.backends.redis.some_scripts import BOTH, INCR
from tests.servers.certificates import Certificates
from tests.servers.fix_redis import StartRedis
from tests.servers.process import until
from tests.servers.redis import RedisServer


def leave_open(url: str) -> None:
    """A run that ends with its link open and an answer on its way."""

    async def main() -> None:
        link = RedisConnection(
            options_of(parse(url)),
            current_event_loop(),
            BOTH,
            on_message=lambda _channel, _payload: None,
            on_reconnect=lambda: None,
        )
        await link.open()
        assert await link.call("CLIENT", "GETNAME") == NAME.encode()
        link.run(INCR, (1, "k"), int).log_failure()

    trio.run(main)
    gc.collect()  # an unclosed socket would warn, and warnings are errors


NAME = "left-open"
"""Not the usual name: other tests may have connections of that at the same server."""


def await_closed(server: RedisServer) -> None:
    until(
        lambda: f"name={NAME} ".encode() not in server.ask("CLIENT", "LIST"),
        "the connection is closed",
    )


def test_a_run_that_ends_first_closes_the_connection(
    fresh_redis: RedisServer,
) -> None:
    leave_open(f"{fresh_redis.url}?client_name={NAME}")
    await_closed(fresh_redis)


def test_the_same_over_tls(start_redis: StartRedis, certificates: Certificates) -> None:
    server = start_redis(certificates=certificates)
    leave_open(f"{server.tls_url}&client_name={NAME}")
    await_closed(server)


def test_unsent_bytes_are_not_overtaken() -> None:
    block = b"x" * 4_000_000

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        talk = RespProtocol("h", BOTH, RecordingHandler())
        wire = talk.transport = PlainTrioTransport(talk, current_event_loop(), ours)
        await trio.testing.wait_all_tasks_blocked()
        wire.write(block)
        assert wire.unsent() > 0
        # The buffer has space again, but the writer has had no turn yet.
        got = len(theirs.recv(100_000))
        wire.write(b"END")
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        rest = b""
        while got + len(rest) < len(block) + 3:
            rest += await stream.receive_some()
        assert rest.endswith(b"xEND")
        await wire.aclose()
        await stream.aclose()

    trio.run(main)


@pytest.mark.parametrize("nursery_fails", [False, True])
def test_an_error_of_the_caller_reaches_the_caller(
    fresh_redis: RedisServer, *, nursery_fails: bool
) -> None:
    # An exception in a system task would come out as TrioInternalError.
    async def main() -> None:
        link = RedisConnection(
            options_of(parse(fresh_redis.url)),
            current_event_loop(),
            BOTH,
            on_message=lambda _channel, _payload: 1 / 0,
            on_reconnect=lambda: 1 / 0,
            channels=[b"c"],
        )
        await link.open()
        await link.call("PUBLISH", "c", "x")
        await link.call("PING")
        if nursery_fails:
            raise LookupError
        await link.aclose()

    if nursery_fails:
        with pytest.raises(LookupError):
            trio.run(main)
    else:
        trio.run(main)
