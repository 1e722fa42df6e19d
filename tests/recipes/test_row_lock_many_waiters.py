"""Row locks under random operations, and among real processes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote.recipes import RowHeld, RowLock
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, opened
from tests.recipes.row_worker import PATIENCE, put, value
from tests.servers.plain_rows import PlainRows

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).parents[2]
OPERATIONS, EVERY = 10_000, 25
PROCESSES, TURNS = ("asyncio", "trio"), 30
SITES = ("sqlite", "postgresql", "mariadb", "mysql")


@pytest.fixture
def site(request: pytest.FixtureRequest) -> LocksSite:
    """By its name."""
    found: LocksSite = request.getfixturevalue(request.param)
    return found


class Model:
    """What the published rules make of a row."""

    def __init__(self) -> None:
        self.mark, self.count = FREE
        self.asked = 0

    def step(self, name: str) -> bool:
        granted = {
            "RLock": self.mark != "WriteLock",
            "RUnlock": self.mark == "ReadLock",
            "WLock": self.mark == "Unlock",
            "WUnlock": self.mark == "WriteLock",
        }[name]
        self.asked += 1
        if granted:
            self.count += {"RLock": 1, "RUnlock": -1}.get(name, 0)
            self.mark = "WriteLock" if name == "WLock" else "Unlock"
            self.mark = "ReadLock" if self.count else self.mark
        return granted


@pytest.mark.anyio
@pytest.mark.only_on("asyncio", "what is counted is the database's")
@pytest.mark.parametrize(
    ("site", "operations"),
    [
        *(("sqlite", 1_000), ("postgresql", OPERATIONS)),
        *(("mariadb", 2_000), ("mysql", 2_000)),
    ],
    indirect=["site"],
)
async def test_random_operations(site: LocksSite, operations: int) -> None:
    """Ours and another program's, in turns: granted as by the rules, and counted."""
    model, chance = Model(), random.Random(8)
    held: list[RowHeld] = []
    theirs: list[str] = []
    async with opened(site) as lock_of:
        lock = lock_of(1)
        for number in range(operations):
            match chance.randrange(4):
                case 0:
                    name = chance.choice(("RLock", "RLock", "WLock"))
                    await _ours(lock, name, model, held)
                case 1 if held:
                    mine = held.pop(chance.randrange(len(held)))
                    assert model.step("RUnlock" if mine.mode == "read" else "WUnlock")
                    await mine.release()
                case 2:
                    name = chance.choice(("RLock", "RLock", "WLock"))
                    granted = site.plain.step(name)
                    assert granted == model.step(name)
                    theirs += [name.replace("Lock", "Unlock")] * granted
                case 3 if theirs:
                    name = theirs.pop(chance.randrange(len(theirs)))
                    assert site.plain.step(name)
                    assert model.step(name)
                case _:
                    pass
            if number % EVERY == 0:
                assert site.plain.state() == (model.mark, model.count), number
        assert model.asked > operations / 2


async def _ours(lock: RowLock, name: str, model: Model, held: list[RowHeld]) -> None:
    """By a task of its own: one may not hold a row twice."""

    async def take() -> None:
        got = await (lock.try_read() if name == "RLock" else lock.try_write())
        assert (got is not None) == model.step(name)
        held.extend([got] if got else [])

    async with anyio.create_task_group() as group:
        group.start_soon(take)


@pytest.mark.parametrize("site", SITES, indirect=True)
def test_processes(site: LocksSite, tmp_path: Path) -> None:
    """Ours, on both loops, and one of the published program: no write is lost."""
    number = tmp_path / "number"
    put(number, 0)
    workers = [_started(site.url, number, loop) for loop in PROCESSES]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for _ in range(TURNS):
            _by_hand(site.plain, number)
        written = TURNS
        for worker in workers:
            output, _ = worker.communicate(timeout=PATIENCE)
            assert worker.returncode == 0
            written += int(output)
        assert value(number) == written
        assert site.plain.state() == FREE
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _started(url: str, number: Path, loop: str) -> subprocess.Popen[str]:
    arguments = [url, str(number), str(TURNS), loop]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.recipes.row_worker", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def _by_hand(plain: PlainRows, number: Path) -> None:
    """The published program polls as fast as it can."""
    while not plain.step("WLock"):
        pass
    put(number, value(number) + 1)
    assert plain.step("WUnlock")
