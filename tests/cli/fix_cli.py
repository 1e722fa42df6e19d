"""`rwlock` as people run it: a process of its own, on a store of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import anyio
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.cli.main import main
from aiorwlock_remote.testing.conformance import ForeignClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
RWLOCK = [sys.executable, "-m", "aiorwlock_remote"]
TIMEOUT = 60.0
HERE = {"break", "ls", "show", "stale", "watch"}
"""A start of Python takes longer than any of them; `watch`, where it ends by itself."""

every_store = pytest.mark.parametrize("store", ["sqlite", "cassandra"], indirect=True)
every_layout = pytest.mark.parametrize(
    "store", ["sqlite", "files", "cassandra", "etcd", "oracle"], indirect=True
)
"""For what shows and breaks what is there; to run a command, files are as SQLite."""


def environment(**more: str) -> dict[str, str]:
    """Ours, but for what would reach a command under test by chance."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RWLOCK_")}
    return kept | {"COLUMNS": "80"} | more


def here(
    words: Sequence[str], environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """`rwlock` in this process, as if it were one of its own.

    Not for `rwlock run` with a command: it takes the signals of its process.
    """
    out, err = io.StringIO(), io.StringIO()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with (
        Path(os.devnull).open() as nothing,
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(sys, "stdin", nothing),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(words)
    assert signal.pthread_sigmask(signal.SIG_SETMASK, mask) == mask
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


class Store:
    """Locks that nobody else has, and `rwlock` on them.

    ``foreigner``: a program there that does not use this library.
    """

    def __init__(self, url: str, foreigner: ForeignClient) -> None:
        self.url = url
        self.foreigner = foreigner

    def rwlock(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end; in this process, where it only looks or breaks."""
        variables = environment(RWLOCK_URL=self.url, **env)
        if words and words[0] in HERE:
            return here(words, variables)
        return subprocess.run(
            [*RWLOCK, *words],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def json(self, *words: str) -> Any:  # noqa: ANN401 - of whatever shape
        """What it prints with --json."""
        return json.loads(self.rwlock(*words, "--json").stdout)

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Run it while the block runs; it is dead afterwards."""
        process = subprocess.Popen(
            [*RWLOCK, *words],
            cwd=ROOT,
            env=environment(RWLOCK_URL=self.url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def held(self, *words: str, name: str = "order/42") -> Iterator[dict[str, Any]]:
        """A lock held by `rwlock run` while the block runs; its holder as JSON."""
        command = (*words, name, "--", "sh", "-c", "echo up; read _")
        with self.running("run", *command) as process:
            line(process, "up")
            yield self.json("show", name)["holders"][0]
            process.communicate("\n", timeout=TIMEOUT)

    def make(self, act: Callable[[Locks], Awaitable[object]]) -> None:
        """Do something through the library."""

        async def main() -> None:
            async with connect(self.url) as locks:
                await act(locks)

        anyio.run(main)

    def leave_behind(self, resource_type: str, number: str, ticket: str) -> None:
        """A grant that never ends."""
        self.make(lambda locks: locks.acquire_mutex_lock(resource_type, number, ticket))


def line(process: subprocess.Popen[str], expected: str) -> None:
    """The next line it prints."""
    assert process.stdout is not None
    output = process.stdout.readline()
    assert output == f"{expected}\n", (output, process.poll())


def eventually(seen: Callable[[], bool]) -> None:
    """Wait until it is so."""
    until = time.monotonic() + TIMEOUT
    while not seen():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.02)


def processes() -> dict[int, int]:
    """The parents of all processes; read from /proc, not every machine has ps(1)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            pid, _, rest = stat.read_text().partition(" (")
            parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    return parents


def children(parent: int) -> set[int]:
    """Its children's ids."""
    return {pid for pid, one in processes().items() if one == parent}
