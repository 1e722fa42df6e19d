"""A server process that cannot outlive the tests, however they end."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from os import kill
from pathlib import Path

import pytest

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
            state = Path(f"/proc/{self.pid}/stat")
            return not state.exists() or state.read_text().split()[2] != "Z"
        return False

    def end(self) -> None:
        """Killed, gone, and its guard too."""
        with suppress(BrokenPipeError):
            self._guard.communicate()


def needed(program: str, package: str) -> str:
    """Where a program is; without it the test fails and names the package."""
    path = shutil.which(program)
    if path is None:
        pytest.fail(f"{program} is missing: apt-get install {package}")
    return path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for something that gives no event."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        time.sleep(0.01)
