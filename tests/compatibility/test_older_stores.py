"""Stores written by an older version are opened, and go on as if nothing had happened.

The samples of SQLite and files were written by commit 72b6a08, the last one before the
modules and classes got their present names, that of Redis by commit 2faf0d5, when its
queue had become a sorted set; ``scripted_steps.py`` says how. In each of them locks are
held and clients wait. What a store holds is measured by clocks, so the test sets them
back to the moment of the sample: this process's for SQLite and files, whose times are
also those of one boot of the host, and the server's for Redis.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from aiorwlock_remote import Locks, NotOwner, Queued, connect
from aiorwlock_remote.backends.files.resource_files import tag_of
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.compatibility.scripted_steps import (
    FREE,
    LEASE,
    LEASED,
    QUEUED,
    READERS,
    TEXT,
    WRITER,
    Sample,
    clients,
    files_sample,
    play,
    redis_sample,
    sqlite_content,
    sqlite_sample,
    write_files,
)
from tests.servers.clock import SOURCE
from tests.servers.preloading import preloading
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "what is stored does not depend on the loop"),
]

SAMPLES = Path(__file__).with_name("samples")
STORES = ("sqlite", "files", "redis")

StoreName = Literal["sqlite", "files", "redis"]


class ShiftedRedis(RedisServer):
    """A server whose clock is off by some seconds, and runs slower."""

    def __init__(self, folder: Path, offset: int, slowed: int) -> None:
        self._clock = {"CLOCK_OFFSET": str(offset), "CLOCK_SLOWED": str(slowed)}
        super().__init__(folder)

    def command(self) -> tuple[str | Path, ...]:
        clock = preloading(SOURCE, self.folder, **self._clock)
        return (*clock, *super().command())


@dataclass
class OlderStore:
    """A copy of a sample, opened at the moment at which it was written, or later."""

    name: StoreName
    sample: Sample
    folder: Path
    patch: pytest.MonkeyPatch
    server: ShiftedRedis | None = None
    url: str = ""

    def open(self, later: float = 0.0, slowed: int = 1) -> str:
        """Its URL.

        Args:
            later: Seconds that have passed since the sample was taken.
            slowed: How much slower time passes from now on.
        """
        opener = {
            "sqlite": self._open_sqlite,
            "files": self._open_files,
            "redis": self._open_redis,
        }
        self.url = opener[self.name](later, slowed)
        return self.url

    def _open_sqlite(self, later: float, slowed: int) -> str:
        self._set_clocks(later, slowed)
        shutil.copyfile(SAMPLES / "sqlite.file", self.folder / "locks.db")
        return f"sqlite:///{self.folder}/locks.db"

    def _open_files(self, later: float, slowed: int) -> str:
        self._set_clocks(later, slowed)
        locks = self.folder / "locks"
        locks.mkdir()
        write_files(self.sample, locks)
        return locks.as_uri()

    def _open_redis(self, later: float, slowed: int) -> str:
        offset = round(self.sample["wall"] + later - SystemClock().wall())
        server = self.server = ShiftedRedis(self.folder, offset, slowed)
        for name, key in self.sample["keys"].items():
            expires = key["expires_at_ms"]
            at = (expires, "ABSTTL") if expires > 0 else (0,)
            server.ask("RESTORE", name, at[0], bytes.fromhex(key["dump"]), *at[1:])
        return server.url

    def _set_clocks(self, later: float, slowed: int) -> None:
        """Those of this process, and the boot that it believes to run in."""
        real = SystemClock()
        start = real.now()

        def passed() -> float:
            return later + (real.now() - start) / slowed

        def shifted(clock: SystemClock) -> None:
            clock.now = lambda: self.sample["now"] + passed()
            clock.wall = lambda: self.sample["wall"] + passed()

        shift = boot_id.this_boot().shift
        self.patch.setattr(SystemClock, "__init__", shifted)
        self.patch.setattr(
            boot_id, "this_boot", lambda: BootId(self.sample["boot"], shift)
        )


@pytest.fixture(params=STORES)
def older(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OlderStore]:
    sample = json.loads((SAMPLES / f"{request.param}.json").read_text("utf-8"))
    store = OlderStore(request.param, sample, tmp_path, monkeypatch)
    yield store
    if store.server is not None:
        store.server.close()


async def test_held_locks_exclude(older: OlderStore) -> None:
    async with connect(older.open()) as locks:
        assert await locks.rwlock(*WRITER).writer.try_acquire() is None
        assert await locks.rwlock(*WRITER).reader.try_acquire() is None
        assert await locks.rwlock(*READERS).writer.try_acquire() is None
        assert await locks.rwlock(*QUEUED).reader.try_acquire() is None
        assert await locks.mutex(*LEASED).try_acquire() is None
        assert await locks.mutex(*TEXT).try_acquire() is None
        together = await locks.rwlock(*READERS).reader.try_acquire()
        assert together is not None


async def test_locks_of_older_versions_are_listed(older: OlderStore) -> None:
    async with connect(older.open()) as locks:
        found = {(i.resource_type, i.resource_id): i async for i in locks.list()}
        held = (WRITER, READERS, QUEUED, LEASED, TEXT)
        assert set(found) == {(kind, str(name)) for kind, name in held}
        writer, readers = found["order", "1"], found["order", "2"]
        assert [h.fence for h in writer.holders] == [older.sample["fences"]["writer"]]
        assert writer.holders[0].reason == "sample"
        assert len(readers.holders) == 2
        assert [q.mode for q in found["order", "3"].queue] == ["write", "read", "write"]


@pytest.mark.parametrize(
    ("ticket", "resource"),
    [("writer", WRITER), ("leased", LEASED), ("text", TEXT)],
)
async def test_a_ticket_is_adopted(
    older: OlderStore, ticket: str, resource: tuple[str, int | str]
) -> None:
    url = older.open()
    async with connect(url) as locks, connect(url) as others:
        held = await locks.adopt(older.sample["tickets"][ticket])
        assert held.fence > older.sample["fences"][ticket]
        assert await others.rwlock(*resource).writer.try_acquire() is None
        await held.extend()
        assert await held.release()
        async with locks.rwlock(*resource).writer.acquire(timeout=0) as following:
            assert following.fence > held.fence
        with pytest.raises(NotOwner):
            await locks.adopt(older.sample["tickets"][ticket])


async def test_readers_leave_one_by_one(older: OlderStore) -> None:
    tickets, fences = older.sample["tickets"], older.sample["fences"]
    async with connect(older.open()) as locks:
        lock = locks.rwlock(*READERS)
        for name in ("reader", "other reader"):
            assert await lock.writer.try_acquire() is None
            held = await locks.adopt(tickets[name])
            assert held.fence == fences[name]
            await held.release()
        async with lock.writer.acquire(timeout=0) as writer:
            assert writer.fence > max(fences["reader"], fences["other reader"])


async def test_fences_of_a_free_one_rise(older: OlderStore) -> None:
    async with (
        connect(older.open()) as locks,
        locks.mutex(*FREE).acquire(timeout=0) as held,
    ):
        assert held.fence > older.sample["fences"]["free"]


async def test_a_lease_ends_in_time(older: OlderStore) -> None:
    async with connect(older.open(later=LEASE + 60)) as locks:
        async with locks.mutex(*LEASED).acquire(timeout=0) as held:
            assert held.fence > older.sample["fences"]["leased"]
        assert await locks.mutex(*TEXT).try_acquire() is None


async def test_the_queue_keeps_its_order(older: OlderStore) -> None:
    """Clients come back in another order than they queued in, and a new one is behind.

    Of those that wait, the readers follow a writer, then the writers by their numbers.
    An entry lives for 4.5 seconds, and who is admitted has 0.1 second to come. On a
    busy machine clients would be too late for that, so time passes slowly.
    """
    url = older.open(slowed=50)
    entered: list[str] = []

    async def wait(name: str, locks: Locks) -> None:
        lock = locks.rwlock(*QUEUED)
        side = lock.reader if name == "second" else lock.writer
        async with side:
            entered.append(name)

    async def waits(locks: Locks, waiting: int) -> None:
        while sum(q.waiting for q in (await _queue(locks))) < waiting:  # noqa: ASYNC110 - no event tells
            await anyio.sleep(0.01)

    async with (
        clients(url, "third", "second", "first") as (third, second, first),
        connect(url) as new,
        anyio.create_task_group() as tasks,
    ):
        before = [q.mode for q in await _queue(new)]
        tasks.start_soon(wait, "new", new)
        await waits(new, 4)
        for name, locks in (("third", third), ("second", second), ("first", first)):
            tasks.start_soon(wait, name, locks)
        await anyio.sleep(0.2)
        assert [q.mode for q in await _queue(new)] == [*before, "write"]
        held = await new.adopt(older.sample["tickets"]["queued"])
        assert entered == []
        await held.release()
    assert entered == ["second", "first", "third", "new"]


async def _queue(locks: Locks) -> tuple[Queued, ...]:
    return (await locks.rwlock(*QUEUED).info()).queue


# ------------------------------------------------------------- what is written today


async def test_the_same_is_written(
    older: OlderStore, tmp_path: Path, start_redis: Callable[[], RedisServer]
) -> None:
    """Names, types, settings and values, by the same steps, are those of then."""
    today = tmp_path / "today"
    today.mkdir()
    if older.name == "sqlite":
        path, copy = today / "locks.db", today / "copy.db"
        now = await play(f"sqlite:///{path}", lambda: sqlite_sample(path))
        copy.write_bytes(now["file"])  # the clients have changed the other since
        before = sqlite_content(SAMPLES / "sqlite.file")
        assert _form(sqlite_content(copy)) == _form(before)
    elif older.name == "files":
        now = await play(today.as_uri(), lambda: files_sample(today))
        assert _form(_of_files(now)) == _form(_of_files(older.sample))
    else:
        server = start_redis()
        now = await play(server.url, lambda: redis_sample(server.ask))
        assert _of_redis(now) == _of_redis(older.sample)
        assert _form(now["tickets"]) == _form(older.sample["tickets"])


def _of_files(sample: Sample) -> Sample:
    """Each file by name; the seconds in a mutex file's time of change go by the clock.

    The microseconds do not: they tell which boot wrote the file.
    """
    tag = tag_of(sample["boot"])
    return {
        name: {
            "mode": about["mode"],
            "bytes": sum(p if isinstance(p, int) else len(p) for p in about["content"]),
            "text": _latest([p for p in about["content"] if isinstance(p, str)]),
            "tagged": name.endswith(".lock")
            and about["mtime_ns"] // 1000 % 10**6 == tag,
        }
        for name, about in sample["files"].items()
        if name != ".changes"  # random bytes, by which others see a change
    }


def _latest(slots: list[str]) -> str:
    """The text of a file; of a record's slots that with the highest number.

    How often a record was written before depends on the machine: clients that wait
    refresh their entries.
    """
    numbers = [int(slot.split()[1]) for slot in slots if slot.startswith("rwlock1 ")]
    return slots[numbers.index(max(numbers))] if numbers else "".join(slots)


def _of_redis(sample: Sample) -> Sample:
    """Each key by name. Fields of a hash and members of a set are in no order."""
    found = {}
    for name, key in sample["keys"].items():
        content, expires = _form(key["content"]), key["expires_at_ms"] > 0
        if isinstance(content, list):
            content = sorted(zip(content[::2], content[1::2], strict=True))
        found[name] = key["type"], expires, content
    return found


FORMS = (
    # Each process writes the claim window of its own version.
    (re.compile(r"\b(100000|300000)(?=,[0-9]+,)"), "<claim window>"),
    (re.compile(r"rwl1\.[A-Za-z0-9_=-]+"), "<transfer ticket>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<boot>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<ticket or digest>"),
    (re.compile(r"(?<=rwlock1 )\d+ [yn] +\d+"), "<number> <synced> <length>"),
    (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"), "<date>"),
    (re.compile(r"\b[1-9][0-9]{7,}\b"), "<time or holder>"),
    (re.compile(r'(?<=<ticket or digest>": )[0-9]+'), "<seconds>"),
    (re.compile(r"(?<=^0{15}[0-9],)[0-9]+$"), "<seconds>"),
    (re.compile(r"\b(?!0{10})[0-9a-f]{12}\b"), "<time or holder>"),
    (re.compile(r'\["[^"]*",[0-9]+,"Task-[0-9]+"'), '["<host>",<pid>,"<task>"'),
    # Each client says in its entry how long its claim window is.
    (re.compile(r"(?<=<time or holder>,)[0-9]{6}(?=,)"), "<claim window>"),
)
"""What differs from run to run, and what stands for it."""


def _form(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """The value with names for what differs from run to run."""
    if isinstance(value, dict):
        return {_form(k): _form(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_form(item) for item in value]
    if isinstance(value, int) and value >= 10**7:
        return "<time or holder>"
    if isinstance(value, str):
        for pattern, name in FORMS:
            value = pattern.sub(name, value)
    return value
