"""Cancelled at every await point while requests or their answers are lost, too.

Once the store can be reached again, nothing is held by no one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import LockError
from aiorwlock_remote.backends.memory import MemoryStore
from aiorwlock_remote.core.commands import Command, Release, Withdraw
from aiorwlock_remote.testing.faults import Fate, FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.runtime.cancel_fuzz import HISTORIES, NAME, OTHERS, Free, somebody
from tests.runtime.cut_off import Cut, by_scope, natively

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("it is the task that is cancelled, whatever the loop"),
]

TRIALS = 80
PATIENCE, LEASE = 20.0, 60.0
POLL_POLICY = replace(MemoryStore.poll_policy, claim_window=0.05)
"""A grant by message that nobody hears of costs a claim window."""


class Fates:
    """Of commands. ``heard``: whether answers arrive, but for those of ends."""

    def __init__(self, *, heard: bool, ends: Fate) -> None:
        """``ends``: the fate of what ends a grant, when it is sent first."""
        self._heard = heard
        self._ends = ends
        self._ended = set[str]()

    def of(self, command: Command) -> Fate:
        match command:
            case Release(ticket=ticket):
                tickets = {ticket}
            case Withdraw(tickets=several):
                tickets = set(several)
            case _:
                return Fate.PASS if self._heard else Fate.LOSE
        first = not tickets <= self._ended
        self._ended |= tickets
        return self._ends if first else Fate.PASS


FATES = [
    pytest.param(heard, ends, id=f"{'heard' if heard else 'unheard'}-{ends.name}")
    for heard in (True, False)
    for ends in Fate
    if not heard or ends is not Fate.PASS
]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long before asking again."""

    def at_once(*_: object) -> float:
        return 0.001

    monkeypatch.setattr("aiorwlock_remote.runtime.cleanup.back_off", at_once)
    monkeypatch.setattr("aiorwlock_remote.core.mode_queue.back_off", at_once)


@asynccontextmanager
async def answered_later(link: FaultyLink) -> AsyncIterator[None]:
    """Not in the same turn of the loop."""

    async def let_through() -> None:
        while True:
            link.let_through()
            link.hold_back = True
            await checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(let_through)
        yield
        group.cancel_scope.cancel()
    link.let_through()


async def run_history(history: Coroutine[Any, Any, None]) -> None:
    """The history, whatever is said of the store in it."""
    try:
        await history
    except* LockError:
        pass


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize(
    "cut",
    [
        by_scope,
        pytest.param(natively(1), marks=pytest.mark.only_on("asyncio", "its own")),
    ],
    ids=["scope", "task"],
)
@pytest.mark.parametrize(("heard", "ends"), FATES)
@pytest.mark.parametrize("name", HISTORIES)
async def test_no_lock_is_held_by_no_one(
    name: str, cut: Cut, ends: Fate, *, heard: bool, late: bool
) -> None:
    history, in_the_way = HISTORIES[name]
    store = FaultyMemory(poll_policy=POLL_POLICY)
    async with store.connect(lease=LEASE) as locks, store.connect_rival() as near:
        for k in range(1, TRIALS):
            async with somebody(near, in_the_way) as free:

                def begin(free: Free = free) -> None:
                    store.link.fate = Fates(heard=heard, ends=ends).of
                    free()

                async with answered_later(store.link):
                    run_so_far = run_history(history(locks, begin, []))
                    outcome = await cut(run_so_far, k, late=late)
            store.link.fate = lambda _: Fate.PASS
            for each in (NAME, *OTHERS):
                async with near.mutex(*each).acquire(timeout=PATIENCE):
                    pass
            if outcome.suspensions < k:
                return
    pytest.fail(f"more than {TRIALS} suspensions")
