"""A web application of `examples/`, served by two processes that share one file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tests.servers.process import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
WEB_APPS = ("fastapi_app.py", "aiohttp_app.py")
PROCESSES = 2
START_WITHIN = 30.0


@dataclass(frozen=True)
class Site:
    """A running application."""

    urls: tuple[str, ...]
    locks_url: str

    def spread(self, count: int) -> list[str]:
        """So many addresses, taking turns between the processes."""
        turns = cycle(self.urls)
        return [next(turns) for _ in range(count)]


@contextmanager
def site(app: str, folder: Path, *, lease: float = 30) -> Iterator[Site]:
    """Serve it; all processes are stopped again, and none may have crashed."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(PROCESSES)]
        for port in ports:
            stack.enter_context(_served(app, folder, port, lease))
        urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
        yield Site(urls, f"sqlite:///{folder}/locks.db")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What an example needs to run on its own, with its files in `folder`."""
    files = {
        "LOCKS_URL": f"sqlite:///{folder}/locks.db",
        "LEDGER": str(folder / "ledger.db"),
    }
    return {**os.environ, **files, **more}


@contextmanager
def _served(app: str, folder: Path, port: int, lease: float) -> Iterator[None]:
    env = environment(folder, PORT=str(port), LOCKS_LEASE=str(lease))
    log = folder / f"{port}.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, EXAMPLES / app], env=env, stdout=out, stderr=out
        )
        try:
            _wait_for(server, port, log)
            yield
            assert server.poll() is None, log.read_text()
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
                raise
    assert "Traceback" not in log.read_text(), log.read_text()


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_WITHIN
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until, "the server did not start in time"
            time.sleep(0.05)
        else:
            return
