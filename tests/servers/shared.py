"""One server for all workers of a pytest run; it ends with the last of them.

Each worker holds the writing end of a named pipe open, which the kernel closes however
the worker ends. The server's guard reads: when nobody is left, it ends the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the guard runs without it
    import pytest

Facts = dict[str, Any]


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """One process at a time; whoever dies lets go."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def user_cache() -> Path:
    """Where the user keeps what was fetched for the tests."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "aiorwlock-remote-tests"


def fetched(cache: Path, name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder of this name, made by ``fetch`` if it is not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with file_lock(cache / f"{name}.lock"):
        if not folder.exists():
            fetch(folder)
    return folder


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """The same for all workers of this pytest run."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    return base / name


@contextmanager
def shared(
    folder: Path,
    prepare: Callable[[Path], tuple[list[str], Facts]],
    end: signal.Signals = signal.SIGKILL,
) -> Iterator[Facts]:
    """The facts of the server in that folder, started if nobody has yet.

    ``prepare(folder)`` gives its command and what its users must know. The server may
    not answer yet. ``end`` is how it is stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock"):
        user, facts = _joined(folder) or _started(folder, end, *prepare(folder))
    try:
        yield facts
    finally:
        os.close(user)


def _joined(folder: Path) -> tuple[int, Facts] | None:
    try:
        user = os.open(folder / "users", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # not there, or whoever made it died before there was a guard
        return None
    try:
        return user, json.loads((folder / "facts.json").read_text())
    except OSError:  # ... or died after; its guard cleans up once we let go
        os.close(user)
        return None


def _started(
    folder: Path, end: signal.Signals, command: list[str], facts: Facts
) -> tuple[int, Facts]:
    pipe = folder / "users"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    # Both ends, so that the guard finds a writer whenever it opens its own.
    both = os.open(pipe, os.O_RDWR)
    guard = subprocess.Popen(
        [sys.executable, "-I", __file__, str(folder), str(int(end)), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert guard.stdout is not None
    with guard.stdout:
        facts["pid"] = int(guard.stdout.readline())
    guard.returncode = 0  # not ours to wait for: it may outlive us
    user = os.open(pipe, os.O_WRONLY)
    os.close(both)
    (folder / "facts.json").write_text(json.dumps(facts))
    return user, facts


def _guard(folder: Path, end: int, command: list[str]) -> None:
    users = os.open(folder / "users", os.O_RDONLY | os.O_NONBLOCK)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(server.pid, flush=True)  # noqa: T201 - to whoever started us
    os.close(1)
    gone = select.poll()
    gone.register(users, select.POLLHUP)
    while True:
        gone.poll()
        with file_lock(folder / "lock"):  # nobody can come while we look again
            if not gone.poll(0):
                continue
            _forget(folder, users)
            with suppress(ProcessLookupError):
                server.send_signal(end)
            server.wait()
            return


def _forget(folder: Path, users: int) -> None:
    """Unless somebody has started another one there meanwhile."""
    pipe = folder / "users"
    if pipe.exists() and pipe.stat().st_ino == os.fstat(users).st_ino:
        pipe.unlink()
        (folder / "facts.json").unlink(missing_ok=True)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
