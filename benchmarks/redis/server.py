"""A private redis-server for one run, without persistence."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as NotThere

from benchmarks.redis.adapters import MEMORY

SERVER_TIMEOUT = 10.0
"""Seconds that the server may take to start, and MONITOR to be read to its end."""
END_OF_MONITOR = "end of monitor"


class Server:
    """A running redis-server, with our own connection to it."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._port = port
        self._process = process
        self._redis: Any = Redis(port=port)

    def empty(self) -> None:
        """Remove all keys; loaded scripts stay."""
        self._redis.flushall()

    def url_for(self, peer: str, seed: int) -> str:
        """Return the URL at which a peer finds its locks in this round."""
        return f"memory://{seed}" if peer == MEMORY else self.url

    def fill(self, key: str, members: int) -> None:
        """Write a mutex set of which every second mutex is held."""
        scores = {f"m{n}": time.time() if n % 2 else 0 for n in range(members)}
        self._redis.zadd(key, scores)

    def info(self, section: str) -> dict[str, Any]:
        """Return one section of INFO."""
        found: dict[str, Any] = self._redis.info(section)
        return found

    def expiry(self, key: str) -> float | None:
        """Return when a key expires, in seconds of the wall clock; None if never."""
        at = int(self._redis.pexpiretime(key))
        return at / 1000 if at >= 0 else None

    def connections(self) -> int:
        """Return how many connections there are, without our own."""
        return len(self._redis.client_list()) - 1

    def process_ids(self) -> list[int]:
        """Return the process of the server."""
        return [self._process.pid]

    def memory(self) -> float:
        """Return how many bytes the server uses for data and connections."""
        return float(self.info("memory")["used_memory"])

    @contextmanager
    def pinned(self, core: int | None) -> Iterator[None]:
        """Bind the server to a core inside the block; None binds it to none."""
        if sys.platform != "linux" or core is None:
            yield
            return
        # On Linux a process may place its own children.
        os.sched_setaffinity(self._process.pid, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(self._process.pid, os.sched_getaffinity(0))

    @contextmanager
    def monitored(self) -> Iterator[Requests]:
        """Record each request that arrives inside the block, which slows the server."""
        requests = Requests()
        with socket.create_connection(("127.0.0.1", self._port)) as line:
            line.sendall(b"MONITOR\r\n")
            assert line.recv(5) == b"+OK\r\n"
            thread = threading.Thread(target=requests.read, args=[line])
            thread.start()
            try:
                yield requests
                # MONITOR shows this echo after all earlier requests, so that they were
                # read when the echo is.
                self._redis.echo(END_OF_MONITOR)
                requests.complete.wait(SERVER_TIMEOUT)
            finally:
                line.shutdown(socket.SHUT_RDWR)
                thread.join()


class Requests:
    """The requests that arrived at the server, without the commands inside scripts.

    They are counted with MONITOR, as INFO adds the commands inside scripts to them.
    """

    def __init__(self) -> None:
        self._seen: list[float] = []
        self.complete = threading.Event()

    def read(self, line: socket.socket) -> None:
        """Read the lines of MONITOR until the connection is closed; for a thread."""
        rest = b""
        while not self.complete.is_set() and (data := line.recv(1 << 20)):
            *lines, rest = (rest + data).split(b"\r\n")
            for each in lines:
                if each.endswith(f'"{END_OF_MONITOR}"'.encode()):
                    self.complete.set()
                elif b" lua]" not in each.split(b'"', 1)[0]:
                    self._seen.append(float(each[1:].split(b" ", 1)[0]))

    def between(self, begin: float, end: float) -> int:
        """Return how many arrived in a span of the wall clock."""
        return sum(begin <= at < end for at in self._seen)


@contextmanager
def server() -> Iterator[Server]:
    """Start a server on a free port, and end it after the block."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("no redis-server on PATH: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--save", "", "--appendonly", "no"]
    # Without persistence: what is measured is the lock, not the disk.
    process = subprocess.Popen(
        [program, "--bind", "127.0.0.1", *options], stdout=subprocess.DEVNULL
    )
    try:
        running = Server(port, process)
        _wait_for(running, process)
        yield running
    finally:
        process.terminate()
        process.wait()


def _wait_for(running: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SERVER_TIMEOUT
    while True:
        try:
            running.info("server")
        except NotThere:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
