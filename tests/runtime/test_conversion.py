"""Grants that are moved, given away and taken over at random, beside a plain model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import Held, Locks, NotOwner, connect
from aiorwlock_remote.backends.memory import MemoryDatabase
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from aiorwlock_remote.ports import Backend
from tests.conformance import broken
from tests.examples_of_histories import many
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("it is the order of requests that is tested"),
]

SEQUENCES, STEPS = many(250), 12


STORES = (
    "memory",
    pytest.param(
        "redis", marks=[pytest.mark.slow, pytest.mark.only_on("asyncio", "it is slow")]
    ),
)


@pytest.fixture(params=STORES)
def url(
    request: pytest.FixtureRequest, tmp_path: Path, fresh_redis: RedisServer
) -> str:
    return fresh_redis.url if request.param == "redis" else f"memory://{tmp_path.name}"


@dataclass(frozen=True)
class Grant:
    """What the model knows of one."""

    mode: str
    fence: int


@dataclass
class Model:
    """Who holds, by the documented rules; the highest fence there was."""

    held: dict[Held, Grant] = field(default_factory=dict[Held, Grant])
    detached: dict[str, Grant] = field(default_factory=dict[str, Grant])
    highest: int = 0

    @property
    def grants(self) -> list[Grant]:
        """All that live, in anybody's hands or in nobody's."""
        return [*self.held.values(), *self.detached.values()]

    def may_enter(self, mode: str) -> bool:
        """Readers beside readers, a writer alone."""
        return all(mode == grant.mode == "read" for grant in self.grants)

    def entered(self, held: Held, *, joined: bool) -> None:
        """A phase of its own, above all before; who joins readers shares theirs."""
        if joined:
            assert {held.fence} == {grant.fence for grant in self.grants}
        else:
            assert held.fence > self.highest
        self.highest = held.fence
        self.held[held] = Grant(held.mode, held.fence)


async def tried(lock: ReaderLock | WriterLock) -> Held | None:
    """In a task of its own: this one may hold it already."""
    found: list[Held | None] = []

    async def enter() -> None:
        found.append(await lock.try_acquire())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter)
    return found[0]


class Game:
    """A few processes, and what any of them may do next."""

    def __init__(self, processes: Sequence[Locks], number: int) -> None:
        self._processes = processes
        self._name = "moved", number
        self._random = random.Random(number)
        self.model = Model()

    async def step(self) -> None:
        """Something at random, judged by the model; then both are compared."""
        ways = [self.enter, self.enter]
        if self.model.held:
            ways += [self.release, self.downgrade, self.upgrade, self.detach]
        if self.model.detached:
            ways += [self.adopt]
        await self._random.choice(ways)()
        info = await self._processes[0].mutex(*self._name).info()
        assert sorted((h.mode, h.fence or 0) for h in info.holders) == sorted(
            (grant.mode, grant.fence) for grant in self.model.grants
        )

    async def enter(self) -> None:
        """Only tried: nobody waits here."""
        both = self._random.choice(self._processes).rwlock(*self._name)
        sides: list[ReaderLock | WriterLock] = [both.reader, both.writer]
        lock = self._random.choice(sides)
        held = await tried(lock)
        assert (held is not None) == self.model.may_enter(lock.mode)
        if held is not None:
            self.model.entered(held, joined=bool(self.model.grants))

    async def release(self) -> None:
        held = self._any()
        del self.model.held[held]
        assert await held.release()

    async def downgrade(self) -> None:
        """Of a writer only, and only once."""
        held = self._any()
        if held.mode == "write":
            new = await held.downgrade()
            del self.model.held[held]
            assert new.mode == "read"
            self.model.entered(new, joined=False)
            with pytest.raises(NotOwner):
                held.check()

    async def upgrade(self) -> None:
        """Of the only reader."""
        held = self._any()
        if held.mode == "read":
            new = await held.try_upgrade()
            assert (new is not None) == (len(self.model.grants) == 1)
            if new is not None:
                del self.model.held[held]
                assert new.mode == "write"
                self.model.entered(new, joined=False)

    async def detach(self) -> None:
        held = self._any()
        self.model.detached[held.detach()] = self.model.held.pop(held)
        with pytest.raises(NotOwner):
            await held.release()

    async def adopt(self) -> None:
        """By any process, and once only: a writer begins a phase, a reader shares."""
        ticket = self._random.choice(list(self.model.detached))
        held = await self._random.choice(self._processes).adopt(ticket)
        grant = self.model.detached.pop(ticket)
        assert held.mode == grant.mode
        if held.mode == "write":
            self.model.entered(held, joined=False)
        else:
            assert held.fence == grant.fence
            self.model.held[held] = grant
        with pytest.raises(NotOwner):
            await self._random.choice(self._processes).adopt(ticket)

    async def end(self) -> None:
        """Everything given back."""
        while self.model.detached:
            await self.adopt()
        for held in self.model.held:
            assert await held.release()

    def _any(self) -> Held:
        return self._random.choice(list(self.model.held))


async def play(store: str | Backend, sequences: int, lanes: int = 1) -> None:
    """Games of three processes; so many lanes of games, each one after the other."""
    async with connect(store) as one, connect(store) as two, connect(store) as three:
        numbers = iter(range(sequences))

        async def lane() -> None:
            for number in numbers:
                await play_one(Game((one, two, three), number), number)

        async with anyio.create_task_group() as group:
            for _ in range(lanes - 1):
                group.start_soon(lane)
            await lane()
        assert [seen async for seen in one.list()] == []


async def play_one(game: Game, number: int) -> None:
    for step in range(STEPS):
        try:
            await game.step()
        except (AssertionError, NotOwner) as exc:
            exc.add_note(f"in step {step} of sequence {number}")
            raise
    await game.end()


async def test_random_sequences(url: str) -> None:
    # Each game has a resource of its own; together they wait less for the server.
    await play(url, SEQUENCES, lanes=20)


@pytest.mark.parametrize(
    "fault", [broken.MovesKeepFence, broken.Everybody, broken.AnyTicket]
)
async def test_a_store_that_is_wrong_is_found(fault: type[broken.Fault]) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc((AssertionError, NotOwner))):
        await play(broken.Broken(fault, MemoryDatabase()), 100)
