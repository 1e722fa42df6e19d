"""The tasks of a client process of the soak, on asyncio or trio."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel

from aiorwlock_remote import (
    AcquireUncertain,
    BackendError,
    Held,
    LockError,
    LockLost,
    Locks,
    LockTimeout,
    Mutex,
    NotOwner,
    ReaderLock,
    RWLock,
    Semaphore,
    UpgradeConflict,
    WriterLock,
    connect,
)
from aiorwlock_remote.recipes import MutexSet
from aiorwlock_remote.testing.history import Attempt, EventMode, History, now
from tests.faults.register import Register
from tests.soak import names
from tests.soak.counts import Counts
from tests.soak.planted import OTHER_NAMES

Lock = Mutex | ReaderLock | WriterLock | Semaphore
PATIENCE = 60.0
"""Seconds that an acquire waits, unless it is one that is to time out."""
RECONNECTS = 20
SWEEPERS = 12


@dataclass(frozen=True)
class Plan:
    """What a client does. Seconds.

    Attributes:
        place: number of the process among those that run; its successor has it, too.
        loop: ``asyncio``, ``uvloop``, ``trio``, or ``threads`` for the synchronous API.
        sets: whether the store has mutex sets.
        plant: a fault of ``planted``; "": none.
    """

    place: int
    loop: str = "asyncio"
    tasks: int = 12
    lease: float = 2.0
    body: float = 0.002
    seed: int = 0
    sets: bool = False
    plant: str = ""


Grant = tuple[Attempt, Held]


def until(attempt: Attempt, held: Held) -> int | None:
    """Return the deadline of a grant in ns of ``history.now()``; if it is over, that
    which was known last.
    """
    at = now()  # first: a pause in between must not make it later
    left = held.expires_in
    if left is None:
        return None
    return at + int(left * 1e9) if left > 0 else attempt.until or at


class Client:
    """The tasks of one process, and what they have in common.

    ``threads.ThreadClient`` runs the same tasks in threads.
    """

    def __init__(
        self, locks: Locks, history: History, counts: Counts, folder: Path, plan: Plan
    ) -> None:
        self.stopping = False
        self._locks = locks
        self._history = history
        self._counts = counts
        self._plan = plan
        self._tickets = folder / "tickets"
        self._registers = [
            Register(folder / f"register{number}")
            for number in range(names.HOT + names.LONG)
        ]
        self._passed_on = count(1)

    def close(self) -> None:
        for register in self._registers:
            register.close()

    async def run(self) -> None:
        """Take turns in all tasks until SIGTERM, then sweep."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._await_signal)
            async with anyio.create_task_group() as tasks:
                for number in range(self._plan.tasks):
                    tasks.start_soon(self._task, number)
            group.cancel_scope.cancel()
        await self._sweep()

    async def _await_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            print("ready", flush=True)
            async for _ in signals:
                self.stopping = True

    async def _task(self, number: int) -> None:
        plan = self._plan
        task = Task(self, random.Random(f"{plan.seed} {number}"), plan, number)
        more = [(Task.set_member, 1.0)] if plan.sets else []
        turns, weights = zip(*self.turns(), *more, strict=True)
        while not self.stopping:
            (turn,) = task.random.choices(turns, weights)
            try:
                await turn(task)
            except AcquireUncertain:
                self.count("uncertain")
            except BackendError:
                self.count("store unavailable")
                await self.sleep(0.02)
            except LockLost:
                self.count("lost")
            except NotOwner:
                self.count("not owner")

    async def _sweep(self) -> None:
        """Acquire and release each own name: what a killed predecessor left goes."""
        numbers = names.owned(self._plan.place, self._plan.tasks)
        async with anyio.create_task_group() as group:
            for _ in range(SWEEPERS):
                group.start_soon(self._sweep_some, numbers)

    async def _sweep_some(self, numbers: list[int]) -> None:
        while numbers:
            lock = self._locks.rwlock("own", numbers.pop())
            with suppress(LockError):
                held = await lock.writer.acquire(PATIENCE)
                await held.release()

    # ------------------------------------------------------- what threads do otherwise

    def turns(self) -> list[tuple[Turn, float]]:
        return TURNS

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def guard(self, held: Held) -> None:
        await held.guard(anyio.lowlevel.checkpoint())

    async def look_at_all(self) -> None:
        async with aclosing(self._locks.list("hot")) as found:
            async for _ in found:
                pass

    def block(self, seconds: float) -> None:
        """Keep the event loop from running."""
        time.sleep(seconds)

    def use(self, number: int, fence: int) -> int | None:
        """Access what a hot or long name protects; None: the fence is refused."""
        return self._registers[number].access(fence)

    # ------------------------------------------------------------ what is recorded

    def count(self, name: str) -> None:
        self._counts.add(name)

    def ask(self, name: str, mode: EventMode) -> Attempt:
        return self._history.ask(name, mode)

    async def enter(
        self, lock: Lock, name: str, mode: EventMode, timeout: float | None = PATIENCE
    ) -> Grant | None:
        """Acquire; None if it was not granted in time, or the store failed."""
        attempt = self.ask(name, mode)
        self.count("acquire")
        try:
            held = await lock.acquire(timeout)
        except LockTimeout:
            attempt.refused()
            self.count("not granted in time")
            return None
        except (AcquireUncertain, BackendError):
            attempt.unknown()
            raise
        return self.granted(attempt, held)

    async def try_enter(self, lock: Lock, name: str, mode: EventMode) -> Grant | None:
        attempt = self.ask(name, mode)
        self.count("try_acquire")
        try:
            held = await lock.try_acquire()
        except (AcquireUncertain, BackendError):
            attempt.unknown()
            raise
        if held is None:
            attempt.refused()
            self.count("not granted in time")
            return None
        return self.granted(attempt, held)

    def granted(self, attempt: Attempt, held: Held) -> Grant:
        attempt.granted(fence=held.fence, until=until(attempt, held))
        self.count("granted")
        return attempt, held

    async def leave(self, grant: Grant) -> None:
        attempt, held = grant
        attempt.releasing(until=until(attempt, held))
        self.count("release")
        try:
            attempt.released(ok=await held.release())
        except LockLost as exc:
            attempt.lost(exc.reason)
            raise
        except BackendError:
            attempt.released(ok=None)
            raise

    # ------------------------------------------------------------- what is locked

    def rwlock(self, kind: str, number: int) -> RWLock:
        return self._locks.rwlock(kind, self._number(number))

    def mutex(self, kind: str, number: int, *, fair: bool = True) -> Mutex:
        return self._locks.mutex(kind, self._number(number), fair=fair)

    def semaphore(self, number: int) -> Semaphore:
        return self._locks.semaphore("permits", self._number(number), names.LIMIT)

    def mutex_set(self) -> MutexSet:
        return self._locks.mutex_set(names.SET, lease=self._plan.lease)

    def _number(self, number: int) -> int:
        return number + (1_000_000_000 if self._plan.plant == OTHER_NAMES else 0)

    async def access(self, number: int, grant: Grant) -> None:
        """Use what the hot name protects twice, unless the fence is refused."""
        attempt, held = grant
        for step in (1, 2):
            serial = self.use(number, held.fence)
            attempt.access(step=step, serial=serial, until=until(attempt, held))
            if serial is None:
                return
            await self.sleep(random.uniform(0, self._plan.body))

    def pass_on(self, number: int, ticket: str) -> None:
        """Leave a detached grant for any process."""
        name = f"{number}.{self._history.process}.{next(self._passed_on)}"
        (self._tickets / f"{name}.new").write_text(ticket)
        (self._tickets / f"{name}.new").rename(self._tickets / name)

    def pick_up(self) -> tuple[int, str] | None:
        """Take what a process has left: number and ticket."""
        for path in self._tickets.iterdir():
            if path.suffix in {".new", ".taken"}:
                continue
            taken = path.with_name(f"{path.name}.{self._history.process}.taken")
            try:
                path.rename(taken)
                ticket = taken.read_text()
                taken.unlink()
            except FileNotFoundError:  # another process was quicker
                continue
            return int(path.name.partition(".")[0]), ticket
        return None

    async def adopt(self, ticket: str) -> Held:
        return await self._locks.adopt(ticket)

    async def release_ticket(self, number: int, ticket: str) -> bool:
        name = "hot", self._number(number)
        return await self._locks.release_mutex_lock(*name, ticket)

    async def acquire_two(self, numbers: tuple[int, int]) -> tuple[Held, ...]:
        locks = (self.mutex("hot", number) for number in numbers)
        return await self._locks.multi(*locks, timeout=PATIENCE)

    def look_at_own(self) -> None:
        self._locks.statistics()


@dataclass
class Task:
    """One task of a client. Each method is a turn; ``TURNS`` has their weights."""

    client: Client
    random: random.Random
    plan: Plan
    number: int

    def _own(self) -> tuple[int, str]:
        which = self.random.randrange(names.OWN)
        number = names.own_number(self.plan.place, self.number, which)
        return number, f"own/{number}"

    async def own_mutex(self) -> None:
        number, name = self._own()
        if grant := await self.client.enter(
            self.client.mutex("own", number), name, "W"
        ):
            await self.client.leave(grant)

    async def own_reader(self) -> None:
        number, name = self._own()
        reader = self.client.rwlock("own", number).reader
        if grant := await self.client.enter(reader, name, "R"):
            await self.client.leave(grant)

    async def own_try(self) -> None:
        number, name = self._own()
        mutex = self.client.mutex("own", number)
        if grant := await self.client.try_enter(mutex, name, "W"):
            await self.client.leave(grant)

    async def own_extended(self) -> None:
        """Extend, check and guard a grant."""
        number, name = self._own()
        grant = await self.client.enter(self.client.mutex("own", number), name, "W")
        if grant is None:
            return
        _, held = grant
        try:
            self.client.count("extend")
            await held.extend()
            self.client.count("check")
            held.check()
            self.client.count("guard")
            await self.client.guard(held)
        finally:
            await self.client.leave(grant)

    async def own_downgraded(self) -> None:
        """A writer becomes a reader, and a writer again."""
        number, name = self._own()
        await self._moved(self.client.rwlock("own", number), name)

    async def _moved(self, rwlock: RWLock, name: str) -> None:
        grant = await self.client.enter(rwlock.writer, name, "W")
        if grant is not None:
            grant = await self._move(grant, name, "R")
        if grant is not None:
            grant = await self._move(grant, name, "W")
        if grant is not None:
            await self.client.leave(grant)

    async def _move(self, old: Grant, name: str, mode: EventMode) -> Grant | None:
        """Downgrade to a reader, or upgrade to a writer.

        To the judge the old grant ends when the move begins: if the move fails, or is
        interrupted, the grant may be given up.
        """
        attempt, held = old
        attempt.releasing(until=until(attempt, held))
        new = self.client.ask(name, mode)
        self.client.count("downgrade" if mode == "R" else "upgrade")
        try:
            move = held.downgrade() if mode == "R" else held.upgrade(PATIENCE)
            moved = await move
        except (UpgradeConflict, LockTimeout) as exc:
            new.refused()
            conflict = isinstance(exc, UpgradeConflict)
            self.client.count("upgrade conflict" if conflict else "not granted in time")
            await self.client.leave(old)
            return None
        except LockError as exc:
            new.unknown()
            attempt.lost(type(exc).__name__)
            with suppress(LockError):
                await held.release()
            raise
        grant = self.client.granted(new, moved)
        attempt.released(ok=True)
        return grant

    async def own_adopted(self) -> None:
        """Detach a grant, and adopt it in the same task."""
        number, name = self._own()
        grant = await self.client.enter(self.client.mutex("own", number), name, "W")
        if grant is not None:
            await self._adopted(self._detached(grant), name)

    def _detached(self, grant: Grant) -> str:
        attempt, held = grant
        attempt.releasing(until=until(attempt, held))
        self.client.count("detach")
        try:
            return held.detach()
        finally:
            attempt.released(ok=None)

    async def _adopted(self, ticket: str, name: str) -> None:
        attempt = self.client.ask(name, "W")
        self.client.count("adopt")
        try:
            held = await self.client.adopt(ticket)
        except NotOwner:
            attempt.refused()
            raise
        except LockError:
            attempt.unknown()
            raise
        await self.client.leave(self.client.granted(attempt, held))

    async def own_cancelled(self) -> None:
        """Cancel an acquire at a random moment: it leaves nothing behind.

        Else the next one waits for the end of a lease, and the judge hears of an own
        name that was refused.
        """
        number, name = self._own()
        mutex = self.client.mutex("own", number)
        with anyio.move_on_after(self.random.expovariate(1 / 0.002)) as scope:
            if grant := await self.client.enter(mutex, name, "W"):
                with anyio.CancelScope(shield=True):
                    await self.client.leave(grant)
        if scope.cancelled_caught:
            self.client.count("cancelled")
        if grant := await self.client.enter(mutex, name, "W", self.plan.lease / 2):
            await self.client.leave(grant)

    async def own_info(self) -> None:
        number, _ = self._own()
        self.client.count("info")
        await self.client.rwlock("own", number).reader.info()

    async def hot(self) -> None:
        """A mutex, a writer or a reader, entered by ``async with``."""
        number = self.random.randrange(names.HOT)
        name = f"hot/{number}"
        lock, mode = self._hot_lock(number)
        attempt = self.client.ask(name, mode)
        self.client.count("acquire")
        entered = False
        try:
            async with lock.acquire(PATIENCE) as held:
                grant = self.client.granted(attempt, held)
                entered = True
                try:
                    await self.client.access(number, grant)
                finally:
                    self.client.count("release")
                    attempt.releasing(until=until(attempt, held))
            attempt.released(ok=True)
        except LockTimeout:
            attempt.refused()
            self.client.count("not granted in time")
        except LockLost as exc:
            attempt.lost(exc.reason)
            raise
        except (AcquireUncertain, BackendError):
            if entered:
                attempt.released(ok=None)
            else:
                attempt.unknown()
            raise

    def _hot_lock(self, number: int) -> tuple[Lock, EventMode]:
        if number <= names.UNFAIR:
            return self.client.mutex("hot", number, fair=number != names.UNFAIR), "W"
        both = self.client.rwlock("hot", number)
        if self.random.random() < 0.5:
            return both.reader, "R"
        return both.writer, "W"

    async def hot_cancelled(self) -> None:
        """Cancel an acquire at a random moment."""
        number = self.random.randrange(names.HOT)
        lock, mode = self._hot_lock(number)
        grant = None
        with anyio.move_on_after(self.random.expovariate(1 / 0.01)) as scope:
            grant = await self.client.enter(lock, f"hot/{number}", mode)
        if scope.cancelled_caught:
            self.client.count("cancelled")
        if grant is not None:
            await self.client.leave(grant)

    async def hot_timed_out(self) -> None:
        """Wait for a short time only."""
        number = self.random.randrange(names.HOT)
        lock, mode = self._hot_lock(number)
        wait = self.random.expovariate(1 / 0.02)
        if grant := await self.client.enter(lock, f"hot/{number}", mode, wait):
            await self.client.access(number, grant)
            await self.client.leave(grant)

    async def hot_moved(self) -> None:
        """Downgrade and upgrade what others wait for."""
        number = self.random.randrange(names.UNFAIR + 1, names.HOT)
        await self._moved(self.client.rwlock("hot", number), f"hot/{number}")

    async def long(self) -> None:
        """Hold what others wait for, for up to some leases: it has to be renewed."""
        number, lease = self.random.randrange(names.LONG), self.plan.lease
        mutex = self.client.mutex("long", number)
        grant = await self.client.enter(mutex, f"long/{number}", "W", lease / 8)
        if grant is None:
            return
        attempt, held = grant
        left, step = self.random.uniform(0, names.LEASES * lease), 0
        while left > 0 and held.valid:
            step += 1
            serial = self.client.use(names.HOT + number, held.fence)
            attempt.access(step=step, serial=serial, until=until(attempt, held))
            if serial is None:
                break
            pause = self.random.uniform(0, lease / 3)
            if self.random.random() < 0.1:
                self.client.block(pause)
            else:
                await self.client.sleep(pause)
            left -= pause
        await self.client.leave(grant)

    async def hot_released(self) -> None:
        """Release what this task does not hold, as who repeats a release does."""
        number = self.random.randrange(names.UNFAIR)
        self.client.count("release")
        ticket = self.random.randbytes(16).hex()
        assert not await self.client.release_ticket(number, ticket)

    async def hot_info(self) -> None:
        self.client.count("info")
        number = self.random.randrange(names.HOT)
        await self.client.mutex("hot", number).info()

    async def hot_list(self) -> None:
        self.client.count("list")
        await self.client.look_at_all()
        self.client.count("statistics")
        self.client.look_at_own()

    async def two(self) -> None:
        """Two hot names at once."""
        first, second = self.random.sample(range(names.UNFAIR), 2)
        numbers = (first, second)
        attempts = [self.client.ask(f"hot/{number}", "W") for number in numbers]
        self.client.count("multi")
        try:
            several = await self.client.acquire_two(numbers)
        except LockTimeout:
            self.client.count("not granted in time")
            for attempt in attempts:
                attempt.refused()
            return
        except LockError:
            for attempt in attempts:
                attempt.unknown()
            raise
        grants = [
            self.client.granted(attempt, held)
            for attempt, held in zip(attempts, several, strict=True)
        ]
        failed: LockError | None = None
        for number, grant in zip(numbers, grants, strict=True):
            await self.client.access(number, grant)
            try:
                await self.client.leave(grant)
            except LockError as exc:
                failed = exc
        if failed is not None:
            raise failed

    async def permit(self) -> None:
        number = self.random.randrange(names.SEMAPHORES)
        semaphore = self.client.semaphore(number)
        if grant := await self.client.enter(semaphore, f"permits/{number}", "W"):
            await self.client.sleep(self.random.uniform(0, self.plan.body))
            await self.client.leave(grant)

    async def pass_on(self) -> None:
        """Detach a grant for any process."""
        number = self.random.randrange(names.PASSED)
        mutex = self.client.mutex("passed", number)
        if grant := await self.client.try_enter(mutex, f"passed/{number}", "W"):
            self.client.pass_on(number, self._detached(grant))

    async def pick_up(self) -> None:
        """Adopt what any process has detached."""
        if found := self.client.pick_up():
            number, ticket = found
            await self._adopted(ticket, f"passed/{number}")

    async def set_member(self) -> None:
        """A mutex of the set, by its name."""
        member = self.random.choice(names.MEMBERS)
        attempt = self.client.ask(f"set/{member}", "W")
        self.client.count("acquire")
        try:
            held = await self.client.mutex_set().acquire(member, PATIENCE)
        except LockTimeout:
            attempt.refused()
            return
        except LockError:
            attempt.unknown()
            raise
        await self.client.leave(self.client.granted(attempt, held))


Turn = Callable[[Task], Awaitable[None]]

TURNS: list[tuple[Turn, float]] = [
    (Task.own_mutex, 30.0),
    (Task.own_reader, 10.0),
    (Task.own_try, 10.0),
    (Task.own_extended, 10.0),
    (Task.own_downgraded, 5.0),
    (Task.own_adopted, 5.0),
    (Task.own_cancelled, 5.0),
    (Task.own_info, 10.0),
    (Task.hot, 10.0),
    (Task.hot_cancelled, 2.0),
    (Task.hot_timed_out, 2.0),
    (Task.hot_moved, 0.5),
    (Task.long, 0.2),
    (Task.hot_released, 0.5),
    (Task.hot_info, 1.0),
    (Task.hot_list, 0.02),
    (Task.two, 0.5),
    (Task.permit, 3.0),
    (Task.pass_on, 0.5),
    (Task.pick_up, 1.0),
]


async def opened(url: str, plan: Plan) -> Locks:
    """Connect; the store may be away when the process starts."""
    for _ in range(RECONNECTS - 1):
        with suppress(BackendError):
            return await connect(url, lease=plan.lease)
        await anyio.sleep(0.5)
    return await connect(url, lease=plan.lease)


async def run(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Take turns in all tasks until SIGTERM, then sweep."""
    counts = Counts(folder / f"{name}.counts")
    with History(folder / f"{name}.jsonl", process=name) as history:
        async with await opened(url, plan) as locks:
            with closing(Client(locks, history, counts, folder, plan)) as client:
                await client.run()
