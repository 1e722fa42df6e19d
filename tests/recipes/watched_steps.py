"""A store of occupied objects, at each of whose steps something may happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from aiorwlock_remote.core.occupancy import ContenderRecord
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.recipes import Occupancy
from tests.recipes.occupied_places import BOOK, Place

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
