"""The steps behind the samples, by what the library has offered since 0.1.

Run as a program it writes a sample of a store, with the library found on PYTHONPATH::

    git archive 72b6a08 | tar -x -C /tmp/before
    PYTHONPATH=/tmp/before python tests/compatibility/scripted_steps.py \
        tests/compatibility/samples redis://localhost:6399

The test plays the same steps with the library of today, and compares what they write.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    closing,
    suppress,
)
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hiredis

from aiorwlock_remote import Held, Locks, connect

CLIENTS = ("owner", "other", "first", "second", "third")
"""Who takes part, in the order in which they connect."""

WRITER, READERS, QUEUED = ("order", 1), ("order", 2), ("order", 3)
FREE, LEASED, TEXT = ("order", 4), ("order", 5), ("invoice", "März 7/b")
"""What is held by a writer, read by two, waited for by three, was held and is free, is
held for an hour, and has a text for a name. All but LEASED are held for ever."""

LEASE = 3600.0
FREE_CYCLES = 3

Sample = dict[str, Any]


def client_id(name: str) -> str:
    """The id of that client in the samples, which is random otherwise."""
    return f"{CLIENTS.index(name) + 1:016x}"


@asynccontextmanager
async def clients(
    url: str, *names: str, lease: float | None = 30.0
) -> AsyncIterator[list[Locks]]:
    """Connections with the client ids of these."""
    token_hex = secrets.token_hex
    opened: list[Locks] = []
    try:
        for name in names:
            secrets.token_hex = lambda _=None, name=name: client_id(name)  # type: ignore[misc]
            try:
                opened.append(await connect(url, lease=lease))
            finally:
                secrets.token_hex = token_hex
        yield opened
    finally:
        for locks in reversed(opened):
            await locks.aclose()


async def play(url: str, taken: Callable[[], Sample]) -> Sample:
    """Bring a store into the state of the samples, and take one.

    Args:
        url: Of an empty store.
        taken: Returns what stands in the store; called while three clients wait.
    """
    tickets: dict[str, str] = {}
    fences: dict[str, int] = {}
    async with clients(url, *CLIENTS, lease=None) as (owner, other, *waiting):
        for _ in range(FREE_CYCLES):
            async with owner.mutex(*FREE) as free:
                fences["free"] = free.fence
        given = {
            "writer": await owner.rwlock(*WRITER).writer.acquire(reason="sample"),
            "reader": await owner.rwlock(*READERS).reader.acquire(),
            "other reader": await other.rwlock(*READERS).reader.acquire(),
            "queued": await owner.rwlock(*QUEUED).writer.acquire(),
            "leased": await owner.mutex(*LEASED, lease=LEASE).acquire(),
            "text": await owner.mutex(*TEXT).acquire(),
        }
        for name, held in given.items():
            fences[name] = held.fence
            tickets[name] = held.detach()
        first, second, third = (locks.rwlock(*QUEUED) for locks in waiting)
        tasks: list[asyncio.Task[Any]] = []
        for lock in (first.writer, second.reader, third.writer):
            tasks.append(asyncio.ensure_future(_entered(lock)))
            while len((await owner.rwlock(*QUEUED).info()).queue) < len(tasks):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        sample = taken()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return {"fences": fences, "tickets": tickets, **sample}


async def _entered(lock: AbstractAsyncContextManager[Held]) -> None:
    async with lock:
        raise AssertionError("it is held by others")


def boot_times() -> Sample:
    """When it was, by the clocks of this host."""
    return {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "now": time.clock_gettime(time.CLOCK_BOOTTIME),
        "wall": time.time(),
    }


# ------------------------------------------------------------------------- SQLite


def sqlite_sample(path: Path) -> Sample:
    """The file itself, with nothing left in its log."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {**boot_times(), "file": path.read_bytes()}


def sqlite_content(path: Path) -> Sample:
    """Settings, tables and rows of the file."""
    with closing(sqlite3.connect(path)) as db:
        settings = ("user_version", "application_id", "journal_mode", "encoding")
        schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
        tables = list(db.execute(schema))
        return {
            **{name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in settings},
            "tables": tables,
            "rows": {
                name: [list(row) for row in db.execute(f"SELECT * FROM {name}")]  # noqa: S608
                for name, _ in tables
            },
        }


# -------------------------------------------------------------------------- files


def files_sample(folder: Path) -> Sample:
    """Each file: its content, mode, and time of change, which means something.

    Records are padded with blanks: a number stands for so many of them.
    """
    found = {}
    for path in sorted(folder.iterdir()):
        about = path.stat()
        found[path.name] = {
            "mode": about.st_mode & 0o7777,
            "mtime_ns": about.st_mtime_ns,
            "content": _shortened(path.read_bytes().decode("latin-1")),
        }
    return {**boot_times(), "files": found}


def write_files(sample: Sample, folder: Path) -> None:
    """The inverse of ``files_sample``."""
    for name, about in sample["files"].items():
        parts = about["content"]
        text = "".join(" " * p if isinstance(p, int) else p for p in parts)
        (folder / name).write_bytes(text.encode("latin-1"))
        (folder / name).chmod(about["mode"])
        os.utime(folder / name, ns=(about["mtime_ns"],) * 2)


def _shortened(text: str) -> list[str | int]:
    parts: list[str | int] = []
    while text:
        word, blanks, text = text.partition(" " * 64)
        parts += [word] if word else []
        rest = text.lstrip(" ")
        if blanks:
            parts.append(64 + len(text) - len(rest))
        text = rest
    return parts


# -------------------------------------------------------------------------- Redis


def redis_sample(ask: Callable[..., Any]) -> Sample:
    """Each key: what DUMP gives, when it expires, and its content as text."""
    seconds, micros = ask("TIME")
    keys = sorted(ask("KEYS", "*"))
    reads = {
        "string": ("GET",),
        "hash": ("HGETALL",),
        "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
        "set": ("SMEMBERS",),
        "list": ("LRANGE", 0, -1),
    }
    found = {}
    for key in keys:
        kind = ask("TYPE", key)
        kind = kind if isinstance(kind, str) else kind.decode()
        name, *more = reads[kind]
        found[key.decode()] = {
            "type": kind,
            "dump": ask("DUMP", key).hex(),
            "expires_at_ms": ask("PEXPIRETIME", key),
            "content": _text(ask(name, key, *more)),
        }
    return {"wall": int(seconds) + int(micros) / 1e6, "keys": found}


def _text(answer: Any) -> Any:  # noqa: ANN401 - any answer
    if isinstance(answer, bytes):
        return answer.decode()
    return [_text(item) for item in answer] if isinstance(answer, list) else answer


def _asking(url: str) -> Callable[..., Any]:
    at = urlsplit(url)
    sock = socket.create_connection((at.hostname, at.port or 6379))
    reader = hiredis.Reader(notEnoughData=...)

    def ask(*words: str | int | bytes) -> Any:  # noqa: ANN401 - any answer
        sock.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]  # its stub names one word
        while (answer := reader.gets()) is ...:
            reader.feed(sock.recv(65536))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


# ----------------------------------------------------------------------- a program


def main(samples: Path, redis_url: str) -> None:
    """Write the samples of the three stores; Redis has to be empty."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "locks")
        folder.mkdir()
        sample = asyncio.run(play(folder.as_uri(), lambda: files_sample(folder)))
        _write(samples / "files.json", sample)
        path = Path(name, "locks.db")
        sample = asyncio.run(play(f"sqlite:///{path}", lambda: sqlite_sample(path)))
        (samples / "sqlite.file").write_bytes(sample.pop("file"))
        _write(samples / "sqlite.json", sample)
    ask = _asking(redis_url)
    assert ask("DBSIZE") == 0
    _write(
        samples / "redis.json", asyncio.run(play(redis_url, lambda: redis_sample(ask)))
    )


def _write(path: Path, sample: Sample) -> None:
    path.write_text(json.dumps(sample, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
