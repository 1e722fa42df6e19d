"""The servers of the tests keep their promises."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers import process
from tests.servers.fix_redis import StartRedis
from tests.servers.process import IP, free_port, needed, until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer


def test_missing_server_fails_and_names_the_package() -> None:
    with pytest.raises(pytest.fail.Exception, match="apt-get install redis-server"):
        needed("no-such-redis-server", "redis-server")


def test_no_port_is_given_out_twice_or_to_a_client() -> None:
    """Or else a server that takes long to start would find somebody else there."""
    ports = [free_port() for _ in range(100)]
    assert len(set(ports)) == 100
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")  # Linux's
    if given.exists():
        assert max(ports) < int(given.read_text().split()[0])


def test_a_port_in_use_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((IP, free_port())) as server:
        taken, free = server.getsockname()[1], free_port()
        monkeypatch.setattr(process, "_ours", iter([taken, free]))
        assert free_port() == free


def test_restarts_on_its_ports(start_redis: StartRedis) -> None:
    server = start_redis(config={"maxmemory": "3mb"}, users=["bob on >pw +@all"])
    assert server.ask("CONFIG", "GET", "maxmemory")[1] == b"3145728"
    assert b"bob" in server.ask("ACL", "USERS")
    port, pid = server.port, server.pid
    server.restart()
    assert server.port == port
    assert server.pid != pid
    assert server.ask("PING") == b"PONG"


def test_stopped_in_order_it_saves(start_redis: StartRedis) -> None:
    server = start_redis(config={"appendonly": "yes", "appendfsync": "everysec"})
    server.ask("SET", "key", "value")
    server.stop()
    server.start()
    assert server.ask("GET", "key") == b"value"


def test_paused_it_says_nothing(start_redis: StartRedis) -> None:
    server = start_redis()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        server.pause()
        sock.sendall(b"PING\r\n")
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(64)
        server.resume()
        sock.settimeout(10)
        assert sock.recv(64) == b"+PONG\r\n"
    pid = server.pid
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_port_that_is_taken_is_chosen_again(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    class Unlucky(RedisServer):
        def choose_ports(self) -> None:
            super().choose_ports()
            chosen.append(self.port)
            if len(chosen) == 1:
                self.port = redis_server.port

    chosen: list[int] = []
    server = Unlucky(tmp_path)
    server.close()
    assert server.port == chosen[1]


def test_the_output_of_a_server_that_does_not_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"does not start: [^|]*no-such"):
        RedisServer(tmp_path, config={"loadmodule": "/no-such.so"})


SCRIPT = """
import sys, os, tempfile
from pathlib import Path
from tests.servers.redis import RedisServer
server = RedisServer(Path(sys.argv[1]))
server.pause()
print(server.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_does_not_outlive_killed_tests(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,  # it kills itself
        cwd=Path(__file__).parents[2],
    )
    pid = int(done.stdout)

    def gone() -> bool:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return False
        return True

    until(gone, "the orphan has ended")


def test_proxy_cuts_at_the_given_byte(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        port, redis_server.port = redis_server.port, proxy.port
        try:
            assert redis_server.ask("PING") == b"PONG"
            proxy.cut_after(3, to="client")
            with pytest.raises(ConnectionResetError):
                redis_server.ask("PING")
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                redis_server.ask("PING")
            proxy.accept()
            assert redis_server.ask("PING") == b"PONG"
        finally:
            redis_server.port = port
