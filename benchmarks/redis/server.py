"""A redis-server of our own: private, without persistence, gone afterwards."""

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

PATIENCE = 10.0


class Server:
    """A server that runs."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        """Started by ``server``."""
        self.url = f"redis://127.0.0.1:{port}/0"
        self._port = port
        self._process = process
        self._redis: Any = Redis(port=port)

    def empty(self) -> None:
        """Forget all keys; scripts stay."""
        self._redis.flushall()

    def url_for(self, peer: str, seed: int) -> str:
        """Where this peer finds its locks."""
        return f"memory://{seed}" if peer == MEMORY else self.url

    def fill(self, key: str, members: int) -> None:
        """A mutex set; every other mutex is held."""
        scores = {f"m{n}": time.time() if n % 2 else 0 for n in range(members)}
        self._redis.zadd(key, scores)

    def info(self, section: str) -> dict[str, Any]:
        """INFO."""
        found: dict[str, Any] = self._redis.info(section)
        return found

    def ends(self, key: str) -> float | None:
        """When the key expires, in seconds of the wall clock; None: not there."""
        at = int(self._redis.pexpiretime(key))
        return at / 1000 if at >= 0 else None

    def connections(self) -> int:
        """How many there are, without our own."""
        return len(self._redis.client_list()) - 1

    @contextmanager
    def pinned(self, core: int | None) -> Iterator[None]:
        """Bound to that core for a while; None: wherever it likes."""
        if sys.platform != "linux" or core is None:
            yield
            return
        os.sched_setaffinity(self._process.pid, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(self._process.pid, os.sched_getaffinity(0))

    @contextmanager
    def overheard(self) -> Iterator[Requests]:
        """Note each request that arrives from now on. Slows the server down."""
        heard = Requests()
        with socket.create_connection(("127.0.0.1", self._port)) as line:
            line.sendall(b"MONITOR\r\n")
            assert line.recv(5) == b"+OK\r\n"
            thread = threading.Thread(target=heard.listen, args=[line])
            thread.start()
            try:
                yield heard
                self._redis.echo("that is all")  # what came before has been heard
                heard.over.wait(PATIENCE)
            finally:
                line.shutdown(socket.SHUT_RDWR)
                thread.join()


class Requests:
    """What arrived at the server: requests, not the commands inside scripts.

    INFO counts both as one, and a read from a socket may bring many: MONITOR tells
    them apart.
    """

    def __init__(self) -> None:
        self._seen: list[float] = []
        self.over = threading.Event()

    def listen(self, line: socket.socket) -> None:
        """Until the line is cut; for a thread."""
        rest = b""
        while not self.over.is_set() and (data := line.recv(1 << 20)):
            *lines, rest = (rest + data).split(b"\r\n")
            for each in lines:
                if each.endswith(b'"that is all"'):
                    self.over.set()
                elif b" lua]" not in each.split(b'"', 1)[0]:
                    self._seen.append(float(each[1:].split(b" ", 1)[0]))

    def between(self, begin: float, end: float) -> int:
        """How many from one time to another, by the wall clock."""
        return sum(begin <= at < end for at in self._seen)


@contextmanager
def server() -> Iterator[Server]:
    """Start one on a free port."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("no redis-server on PATH: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--save", "", "--appendonly", "no"]
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
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            running.info("server")
        except NotThere:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
