"""Occupying objects when something goes wrong at each step of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, LockBusy
from aiorwlock_remote.core.occupancy import ContenderRecord
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.recipes import Occupancy
from aiorwlock_remote.runtime.cleanup import MAX_RETRIES
from tests.backends.redis.connections import eventually
from tests.faults.occupier import entered, turns
from tests.recipes.occupied_places import BOOK, FolderPlace, Place
from tests.runtime.cancel_at import CancelAt

# ----- A store of occupied objects, at each of whose steps something may happen


T = TypeVar("T")
NOTHING: tuple[list[str], list[str]] = ([], [])

Upset = Callable[[str], Awaitable[None]]


class Watched:
    """A store; ``before`` and ``after`` each of its steps something may happen."""

    def __init__(self, store: OccupancyStore) -> None:
        self._store = store
        self.ages = store.ages
        self.confirms = store.confirms
        self.check = store.check
        self.sign = store.sign
        self.steps: list[str] = []
        self.ended = 0
        self.before: Upset = nothing
        self.after: Upset = nothing

    async def _step(self, name: str, step: Callable[[], Awaitable[T]]) -> T:
        self.steps.append(name)
        await self.before(name)
        answer = await step()
        await self.after(name)
        self.ended += 1
        return answer

    async def write(self, thing: str, who: str) -> None:
        await self._step("write", partial(self._store.write, thing, who))

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        return await self._step("pendings", partial(self._store.pendings, thing, who))

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        return await self._step("usings", partial(self._store.usings, thing, who))

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        drop = partial(self._store.drop, thing, record, using=using)
        await self._step("drop", drop)

    async def promote(self, thing: str, who: str) -> bool:
        return await self._step("promote", partial(self._store.promote, thing, who))

    async def extend(self, thing: str, who: str) -> bool:
        return await self._step("extend", partial(self._store.extend, thing, who))

    async def remove(self, thing: str, who: str) -> bool:
        return await self._step("remove", partial(self._store.remove, thing, who))


async def nothing(_step: str) -> None:
    """Happens."""


def watched(home: Occupancy) -> tuple[Occupancy, Watched]:
    store = Watched(home.store)
    return Occupancy(store, event_loop=home._event_loop), store


def at(number: int, store: Watched, action: Callable[[], object]) -> Upset:
    """Does something at the step of that number."""

    async def upset(_: str) -> None:
        if len(store.steps) == number:
            action()

    return upset


async def steps_of(place: Place) -> list[str]:
    """What occupying and giving back takes."""
    async with place.open() as ours:
        home, store = watched(ours)
        async with home.occupy(BOOK):
            pass
    return store.steps


# --------------- Occupying objects when something goes wrong at each step of it


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_cancelled_at_each_step(place: Place, when: str) -> None:
    """Wherever it is: no record stays, and the next one gets in at once."""
    steps = await steps_of(place)
    assert steps[:4] == ["write", "pendings", "usings", "promote"]
    async with place.open() as ours:
        for number in range(1, len(steps) + 1):
            home, store = watched(ours)
            with anyio.CancelScope() as scope:
                setattr(store, when, at(number, store, scope.cancel))
                async with home.occupy(BOOK):
                    await anyio.lowlevel.checkpoint()
            assert scope.cancelled_caught, steps[number - 1]
            assert place.records() == NOTHING, steps[number - 1]
        async with ours.occupy(BOOK, timeout=0):
            pass


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
async def test_cancelled_at_each_suspension(place: Place, *, late: bool) -> None:
    """Of the caller, who may also rest because another one is pending."""
    async with place.open() as ours:

        async def use() -> None:
            async with ours.occupy(BOOK):
                await anyio.lowlevel.checkpoint()

        for number in range(1, 10):
            with anyio.CancelScope() as scope:
                driven = CancelAt(use(), number, scope.cancel, late=late)
                await driven
            assert place.records() == NOTHING, number
            if driven.suspensions < number:
                break
        assert number > 2
        place.plant("pending", "jim")
        for number in (1, 2, 3, 4):
            with anyio.CancelScope() as scope:
                await CancelAt(use(), number, scope.cancel, late=late)
            assert scope.cancelled_caught
            assert place.records() == (["jim"], [])


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.only_on("asyncio", "trio has no such cancellation")
async def test_cancelled_natively_and_again(place: Place, number: int) -> None:
    """``Task.cancel`` is no scope: what shields from one lets the other through."""
    async with place.open() as ours:
        home, store = watched(ours)
        go_on = asyncio.Event()

        async def stall(_: str) -> None:
            if len(store.steps) == number:
                task.cancel()
                asyncio.get_running_loop().call_later(0.01, task.cancel)
                asyncio.get_running_loop().call_later(0.03, go_on.set)
                await go_on.wait()

        async def use() -> None:
            async with home.occupy(BOOK):
                pass

        store.before = stall
        task = asyncio.create_task(use())
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(
            lambda: store.steps[-1] == "remove" and store.ended == len(store.steps),
            "the records are taken out",
        )
        assert place.records() == NOTHING


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
@pytest.mark.only_on("asyncio", "trio has no such cancellation")
async def test_a_loop_that_ends_leaves_nothing(place: Place) -> None:
    """As ``asyncio.run`` ends one: every task is cancelled, ours too."""
    async with place.open() as ours:
        home, store = watched(ours)
        stands = asyncio.Event()

        async def stand(step: str) -> None:
            if step == "usings":
                stands.set()
                await asyncio.sleep(60)

        store.before = stand
        before = asyncio.all_tasks()
        using = asyncio.create_task(_use(home))
        await stands.wait()
        assert not using.done()
        ending = asyncio.all_tasks() - before
        assert len(ending) >= 2
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        assert place.records() == NOTHING


async def _use(home: Occupancy) -> None:
    async with home.occupy(BOOK):
        pass


async def lost(_: str) -> None:
    raise BackendUnavailable(what="the answer was lost")


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_step_that_fails(place: Place, when: str) -> None:
    """Carried out or not: it is undone, or the caller knows that nobody knows."""
    steps = await steps_of(place)
    occupying = len(steps) - 1
    async with place.open() as ours:
        for number in range(1, occupying + 1):
            home, store = watched(ours)
            fails = _failing(store, number, once=True)
            setattr(store, when, fails)
            with pytest.raises(BackendUnavailable):
                await home.occupy(BOOK)
            assert place.records() == NOTHING, steps[number - 1]
            home, store = watched(ours)
            setattr(store, when, _failing(store, number, once=False))
            uncertain = number >= 4
            with pytest.raises(AcquireUncertain if uncertain else BackendUnavailable):
                await home.occupy(BOOK, who="alice")
            place.erase()


def _failing(store: Watched, number: int, *, once: bool) -> Upset:
    async def fail(step: str) -> None:
        count = len(store.steps)
        if count == number or (count > number and not once):
            await lost(step)

    return fail


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
async def test_what_is_certainly_not_written_is_not_removed(place: Place) -> None:
    async with place.open() as ours:
        home, store = watched(ours)

        async def away(_: str) -> None:
            raise BackendUnavailable(what="away", nothing_done=True)

        store.before = away
        with pytest.raises(BackendUnavailable):
            await home.occupy(BOOK)
        assert store.steps == ["write"] * (1 + MAX_RETRIES)


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
async def test_a_release_that_fails_is_reported(place: Place) -> None:
    async with place.open() as ours:
        home, store = watched(ours)
        with pytest.raises(BackendUnavailable):
            async with home.occupy(BOOK):
                store.before = lost
        with pytest.raises(ZeroDivisionError):
            store.before = nothing
            place.erase()
            async with home.occupy(BOOK):
                store.before = lost
                raise ZeroDivisionError
        place.erase()


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
async def test_cancelled_while_giving_back(place: Place) -> None:
    async with place.open() as ours:
        with anyio.CancelScope() as scope:
            async with ours.occupy(BOOK):
                scope.cancel()
        assert place.records() == NOTHING


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
@pytest.mark.parametrize("trouble", ["store", "record"])
async def test_cancelled_while_giving_back_in_vain(
    place: Place, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    """No task is left to learn that it failed, or that its record was gone."""
    async with place.open() as ours:
        home, store = watched(ours)
        occupied = await home.occupy(BOOK)
        with anyio.CancelScope() as scope:

            async def fail(step: str) -> None:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
                if trouble == "store":
                    await lost(step)
                place.erase()

            store.before = fail
            await occupied.release()
        assert scope.cancelled_caught
        (message,) = [
            text for text in caplog.messages if text.startswith("request_failed")
        ]
        assert ("lost" if trouble == "store" else "forced") in message
        store.before = nothing
        assert await occupied.release() == (trouble == "store")
        assert place.records() == NOTHING


@pytest.mark.anyio
@pytest.mark.no_uvloop("nothing here depends on what runs the loop")
async def test_two_that_meet_rest_and_try_again(place: Place) -> None:
    """Both pending at once, at the same look: the row of the table that backs off."""
    async with place.open() as ours, place.open() as theirs:
        pairs = [watched(some) for some in (ours, theirs)]
        both, there = anyio.Event(), 0

        async def meet(step: str) -> None:
            nonlocal there
            if step == "write" and not both.is_set():
                there += 1
                if there == 2:
                    both.set()
                await both.wait()

        turns: list[str] = []

        async def use(home: Occupancy, store: Watched) -> None:
            store.after = meet
            while True:
                try:
                    async with home.occupy(BOOK, timeout=30):
                        turns.append("in")
                        await anyio.lowlevel.checkpoint()
                        turns.append("out")
                        return
                except LockBusy:
                    await anyio.sleep(0.01)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for home, store in pairs:
                    group.start_soon(use, home, store)
        assert turns == ["in", "out"] * 2
        seen = [step for _, store in pairs for step in store.steps]
        assert seen.count("write") > 2, "at least one began again"


# ------- Two processes want the same object, and one is killed while it uses it


ROOT = Path(__file__).parents[2]
TURNS, BODY = 15, 0.003


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


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.only_on("asyncio", "the other process has its own loop")
@pytest.mark.no_uvloop("the other process has its own loop")
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
