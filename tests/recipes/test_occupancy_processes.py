"""Two processes want the same object, and one is killed while it uses it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.faults.occupier import entered, turns
from tests.recipes.occupied_places import BOOK, FolderPlace, Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "the other process has its own loop"),
    pytest.mark.no_uvloop("the other process has its own loop"),
]

ROOT = Path(__file__).parents[2]
TURNS, BODY = 15, 0.003
NOTHING: tuple[list[str], list[str]] = ([], [])


@contextmanager
def process(place: Place, path: Path, *plan: object) -> Iterator[subprocess.Popen[str]]:
    """One that has connected; it is always ended."""
    command = [sys.executable, "-m", "tests.faults.occupier", place.spec, str(path)]
    running = subprocess.Popen(
        [*command, *map(str, plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert said(running) == "ready"
        yield running
    finally:
        running.kill()
        running.communicate()


def said(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def go(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    running.stdin.write("go\n")
    running.stdin.flush()


def turns_of(output: str) -> list[tuple[float, float, str]]:
    lines = (line.split() for line in output.splitlines())
    return sorted((float(a), float(b), name) for a, b, name in lines)


def loop_of(place: Place) -> str:
    return "trio" if place.spec.partition(" ")[0] in ("redis", "folder") else "asyncio"


async def test_one_at_a_time_and_a_killed_one_is_in_nobodys_way(
    place: Place, tmp_path: Path
) -> None:
    """In a folder it is proved dead at once; elsewhere its record grows too old."""
    path = tmp_path / "turns"
    age = None if isinstance(place, FolderPlace) else 3.0
    name, ours = f"child-{loop_of(place)}", "ours"
    plan = TURNS, BODY, "none" if age is None else age, name
    with process(place, path, *plan) as child:
        async with place.open(using_age=age) as occupancy:
            go(child)
            own = await turns(occupancy, TURNS, BODY, ours)
            assert await anyio.to_thread.run_sync(said, child) == "done"
            in_order = turns_of(path.read_text() + own)
            go(child)
            assert await anyio.to_thread.run_sync(said, child) == "in"
            assert await occupancy.holders(BOOK) == (name,)
            assert await occupancy.try_occupy(BOOK) is None
            child.kill()
            with anyio.fail_after(60):
                async with await entered(occupancy, ours):
                    pass
    assert Counter(name for *_, name in in_order) == {name: TURNS, ours: TURNS}
    for (_, left, first), (since, _, second) in pairwise(in_order):
        assert left <= since, f"{first} and {second} used it together"
    assert place.records() == NOTHING
