"""Signals to `rwlock run`: the command gets each once, the lock outlives it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

import pytest

from tests.cli.fix_cli import ROOT, RWLOCK, TIMEOUT, Store, environment, line

FORWARDED = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"]

COUNT = """
import signal, sys, time
got = 0
def count(*_):
    global got
    got += 1
signal.signal(getattr(signal, "SIG" + sys.argv[1]), count)
print("up", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.2)  # for a second one, which must not come
sys.exit(40 + got)
"""


@pytest.mark.parametrize("name", FORWARDED)
def test_forwarded(store: Store, name: str) -> None:
    command = ("order/42", sys.executable, "-c", COUNT, name)
    with store.running("run", *command) as process:
        line(process, "up")
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(TIMEOUT) == 41
    assert store.json("ls") == []


LINGER = """
import signal, sys
def asked(*_):
    print("asked", flush=True)
    sys.stdin.readline()
    sys.exit(4)
signal.signal(signal.SIGTERM, asked)
print("up", flush=True)
signal.pause()
"""


def test_the_lock_is_held_until_the_command_has_ended(store: Store) -> None:
    now = ("run", "--timeout", "0", "order/42", "true")
    with store.running("run", "order/42", sys.executable, "-c", LINGER) as process:
        line(process, "up")
        process.send_signal(signal.SIGTERM)
        line(process, "asked")
        assert store.rwlock(*now).returncode == 75
        process.communicate("\n", timeout=TIMEOUT)
    assert process.returncode == 4
    assert store.rwlock(*now).returncode == 0


@contextmanager
def at_a_terminal(
    store: Store, name: str
) -> Iterator[tuple[subprocess.Popen[bytes], FileIO]]:
    """It counts that signal, the first of a session; with who sits at the terminal."""
    master, terminal = pty.openpty()
    person = FileIO(master, "r+")

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    words = [*RWLOCK, "run", "order/42", sys.executable, "-c", COUNT, name]
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment(RWLOCK_URL=store.url),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=take_terminal,  # noqa: PLW1509 - this process has one thread
    )
    os.close(terminal)
    try:
        output = b""
        while not output.endswith(b"up\r\n"):
            output += person.read(100)
        yield process, person
    finally:
        process.kill()
        process.wait()
        person.close()


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "INT"), (b"\x1c", "QUIT")])
def test_ctrl_c_reaches_the_command_once(store: Store, key: bytes, name: str) -> None:
    with at_a_terminal(store, name) as (process, person):
        person.write(key)
        assert process.wait(TIMEOUT) == 41
    assert store.json("ls") == []


def test_a_terminal_that_hangs_up_tells_the_command(store: Store) -> None:
    """It tells the first of a session only: as under ``ssh -t host rwlock run …``."""
    with at_a_terminal(store, "HUP") as (process, person):
        person.close()
        assert process.wait(TIMEOUT) == 41
    assert store.json("ls") == []


def test_ignored_signals_stay_ignored(store: Store) -> None:
    """As under nohup(1)."""
    shell = "trap '' HUP; exec \"$@\""
    inner = "echo up; read _; exit 6"
    words = ["sh", "-c", shell, "sh", *RWLOCK, "run", "order/42", "sh", "-c", inner]
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment(RWLOCK_URL=store.url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        line(process, "up")
        process.send_signal(signal.SIGHUP)
        process.communicate("\n", timeout=TIMEOUT)
    assert process.returncode == 6
