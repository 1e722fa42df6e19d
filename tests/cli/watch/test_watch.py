"""`rwlock watch` as a process: at a terminal, in a pipe, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aiorwlock_remote import Locks
from tests.cli.fix_cli import ROOT, RWLOCK, TIMEOUT, Store, environment

OFTEN = ("--every", "0.2")
BETWEEN = {"expires_in": 0, "age": 0}
"""What differs from one look to the next."""


@pytest.fixture
def left(store: Store) -> Store:
    store.leave_behind("order", "7", "a")
    store.leave_behind("other", "7", "b")
    return store


def output(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def change(process: subprocess.Popen[str]) -> dict[str, Any]:
    one = json.loads(output(process))
    assert isinstance(one, dict)
    return one


def test_json_until_sigterm(left: Store) -> None:
    async def hold(locks: Locks) -> None:
        async with locks.mutex("order", 42).acquire(reason="refund") as held:
            granted = change(process)
            assert (granted["change"], granted["resource"]) == ("granted", "order/42")
            assert granted["holder"]["holder"] == held.holder
            assert granted["holder"]["reason"] == "refund"

    with left.running("watch", "order", "--json", *OFTEN) as process:
        assert change(process)["change"] == "watching"
        held = change(process)
        assert (held["change"], held["resource"]) == ("held", "order/7")
        (listed,) = left.json("ls", "order")
        (holder,) = listed["holders"]
        assert held["holder"] | BETWEEN == holder | BETWEEN
        left.make(hold)
        ended, free = change(process), change(process)
        assert (ended["change"], free["change"]) == ("ended", "free")
        assert ended["holder"]["reason"] == "refund"
        assert free["now"]["locked"] is False
        process.terminate()
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out, err) == (128 + signal.SIGTERM, "", "")


def test_lines_until_nobody_reads(left: Store) -> None:
    with left.running("watch", *OFTEN) as process:
        lines = [output(process) for _ in range(3)]
        assert lines[0].split()[1:] == ["watching"]
        assert [line.split()[1:3] for line in lines[1:]] == [
            *(["held", "order/7"], ["held", "other/7"]),
        ]
        assert "lease never ends" in lines[1]
        assert process.stdout is not None
        process.stdout.close()  # and nothing changes any more
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_store_that_is_not_there_ends_it_as_ls(store: Store) -> None:
    done = store.rwlock("watch", *OFTEN)
    assert (done.returncode, done.stdout) == (2, "")
    assert (done.stderr, done.returncode) == (
        (looked := store.rwlock("ls")).stderr,
        looked.returncode,
    )


class Terminal:
    """`rwlock watch` at a terminal."""

    def __init__(self, store: Store, size: tuple[int, int]) -> None:
        self._master, terminal = pty.openpty()
        self.size(size)
        variables = environment(
            RWLOCK_URL=store.url, TERM="xterm", COLUMNS="", LINES=""
        )

        def take() -> None:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*RWLOCK, "watch", *OFTEN],
            cwd=ROOT,
            env=variables,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            preexec_fn=take,  # noqa: PLW1509 - this process has one thread
        )
        os.close(terminal)

    def size(self, size: tuple[int, int]) -> None:
        """So many lines and columns."""
        window_size = struct.pack("HHHH", *size, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, window_size)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def until(self, expected: str) -> str:
        """What it writes until it has written that."""
        output = b""
        while expected.encode() not in output:
            output += os.read(self._master, 1)
        return output.decode()

    def rest(self) -> str:
        """What it writes until it has ended."""
        output = b""
        while True:
            try:
                output += os.read(self._master, 1000)
            except OSError:  # the other side is closed
                return output.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def at_terminal(store: Store, *size: int) -> Iterator[Terminal]:
    lines, columns = size
    terminal = Terminal(store, (lines, columns))
    try:
        yield terminal
    finally:
        terminal.close()


ON, OFF, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"


def test_at_a_small_terminal(left: Store) -> None:
    with at_terminal(left, 5, 60) as terminal:
        assert terminal.until(ON) == ON
        picture = terminal.until("… and 1 more")
        assert picture.count("order/7") == 1
        assert "other/7" not in picture
        terminal.size((20, 60))
        terminal.until("other/7")
        left.leave_behind("report", "1", "c")
        assert "\x1b[1mreport/1" in terminal.until("granted      report/1")
        terminal.press(b"\x1a")  # Ctrl-Z
        terminal.until(OFF)
        assert os.WIFSTOPPED(os.waitpid(terminal.process.pid, os.WUNTRACED)[1])
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(ON)
        terminal.press(b"\x03")  # Ctrl-C
        last = terminal.rest().rpartition(OFF)[2]
        assert HOME not in last
        assert "report/1" in last  # is still there to be read
        assert terminal.process.wait(TIMEOUT) == 128 + signal.SIGINT
