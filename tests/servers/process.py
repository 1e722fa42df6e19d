"""A server process that cannot outlive the tests, however they end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from os import kill
from pathlib import Path
from random import SystemRandom

import pytest

IP = "127.0.0.1"
_FIRST, _LAST = 10_240, 32_767
"""Ports below those that Linux gives to whoever connects."""

# Ends its child when its own standard input closes: at the latest when we are gone.
_GUARD = '"$@" >/dev/null 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait'


class ServerProcess:
    """One process, started under a guard and ended by its id."""

    def __init__(self, *command: str | Path) -> None:
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is for pytest
        )
        assert self._guard.stdout is not None
        self.pid: int = int(self._guard.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        kill(self.pid, number)

    def alive(self) -> bool:
        with suppress(ProcessLookupError):
            kill(self.pid, 0)
            # One that has ended stays a zombie until the guard waits for it.
            return self._state() != "Z"
        return False

    def pause(self) -> None:
        """It stands still when this returns."""
        self.signal(signal.SIGSTOP)
        until(lambda: self._state() in {"T", ""}, "the process stands still")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Killed, gone, and its guard too."""
        with suppress(BrokenPipeError):
            self._guard.communicate()

    def _state(self) -> str:
        """A letter where the system tells it, as Linux does."""
        with suppress(FileNotFoundError):
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0]
        return ""


def needed(program: str, package: str) -> str:
    """Where a program is; without it the test fails and names the package."""
    path = shutil.which(program)
    if path is None:
        pytest.fail(f"{program} is missing: apt-get install {package}")
    return path


def _ports() -> Iterator[int]:
    """Those of this worker of pytest, again and again in an order of chance."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ours = list(range(_FIRST + worker, _LAST + 1, workers))
    SystemRandom().shuffle(ours)
    return cycle(ours)


_ours = _ports()


def free_port(*ips: str) -> int:
    """A port that is free at each of these addresses, or at the usual one.

    It stays so until a server starts there, which may take it ten seconds: no other
    worker gets it, and no connection is made from it.
    """
    where = ips or (IP,)
    return next(port for port in _ours if all(_is_free(ip, port) for ip in where))


def _is_free(ip: str, port: int) -> bool:
    try:
        with socket.create_server((ip, port)):
            return True
    except OSError:
        return False


def takes_connections(ip: str, port: int) -> bool:
    try:
        with socket.create_connection((ip, port), 1):
            return True
    except OSError:
        return False


def end_of(log: Path) -> str:
    """What a server wrote last."""
    return log.read_text()[-4000:] if log.exists() else "(no log)"


def until(
    condition: Callable[[], bool],
    what: str,
    seconds: float = 60.0,
    *,
    every: float = 0.01,
) -> None:
    """Wait for something that gives no event, asking ``every`` so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        time.sleep(every)
