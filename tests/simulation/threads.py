"""Processes whose threads use the synchronous API, under the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from aiorwlock_remote import sync
from aiorwlock_remote.errors import Closed
from aiorwlock_remote.sync import background, callers, twins
from tests.simulation.bounds import Attempt, Terms
from tests.simulation.work import Working
from tests.simulation.world import (
    SimulatedLock,
    SimulatedProcess,
    SimulatedThread,
    World,
    current_thread,
    in_thread,
)

if TYPE_CHECKING:
    from aiorwlock_remote.sync.api import Held, Locks


class Interrupted(BaseException):
    """What a signal handler raises in a thread that waits."""


class ThreadsWorking(Working):
    """One process at work: several threads, each with some locks to take."""

    def begin(self) -> None:
        self.threads: list[SimulatedThread] = []
        name = f"{self.process.name} main"
        SimulatedThread(self.process, self._main, name)

    def cancel_one(self, random: Random) -> None:
        threads = [thread for thread in self.threads if thread.is_alive()]
        if threads:
            thread = random.choice(threads)
            self._tell(f"{thread.name} is interrupted")
            thread.interrupt(Interrupted())

    def _main(self) -> None:
        run, names = self.run, range(self.run.plan.tasks)
        locks = self._open()
        self.threads = [
            SimulatedThread(
                self.process,
                partial(self._one_thread, locks, f"{self.process.name}.{n}"),
                f"{self.process.name}.{n}",
            )
            for n in names
        ]
        if self.closes_after is not None:
            self.threads[0].join(self.closes_after)
            self.closing = True
            run.world.tell(f"{self.process.name} closes its locks")
            locks.close()
            self._note_trouble()
        for thread in self.threads:
            thread.join()
        if self.stays:
            current_thread().wait(run.until_calm(self.process))
        locks.close()
        self._ends()

    def _open(self) -> Locks:
        backend: Any = self.run.server.backend(self.process)
        return sync.connect(backend)

    def _one_thread(self, locks: Locks, name: str) -> None:
        random = Random(f"{self.run.seed} {name}")
        for _ in range(self.run.plan.rounds):
            try:
                self._one_turn(locks, name, random)
                current_thread().wait(random.expovariate(10.0))
            except Closed:
                if not self.closing:
                    raise
                return
            except Interrupted:
                self._tell(f"{name} was interrupted")

    def _one_turn(self, locks: Locks, name: str, random: Random) -> None:
        # A store that was down at ``connect`` is opened by the first use of a lock.
        with self._outcome(name):
            # Both kinds of ``Locks`` have the same names.
            chosen: tuple[Any, Terms] = self._lock(cast("Any", locks), random)
            lock, terms = chosen
            timeout = random.choice([None, None, 0.0, 0.3, 2.0])
            self._tell(f"{name} asks for {lock.resource} ({timeout})")
            with (
                self._attempt(lock, name, terms, timeout) as attempt,
                lock.acquire(timeout) as held,
            ):
                self._inside_blocking(held, attempt, random)

    def _inside_blocking(self, held: Held, attempt: Attempt, random: Random) -> None:
        self._enters(held, attempt)
        for _ in range(random.randint(0, 4)):
            self._pass_blocking(random)
            self._touch(held, attempt)
        if held.mode != "permit" and random.random() < 0.15:
            with self.run.bounds.moving(attempt):
                moved = held.upgrade(1.0) if held.mode == "read" else held.downgrade()
            self._enters(moved, attempt)
            self._pass_blocking(random)
            self._touch(moved, attempt)

    def _pass_blocking(self, random: Random) -> None:
        current_thread().wait(random.choice([0.0, 0.005, 0.05, 0.5, 1.2]))


class _LoopsThread:
    """The thread of a background loop, in which destructors may run."""

    name = "loop"

    def is_alive(self) -> bool:
        return True


class _Loop:
    """``BackgroundLoop``: the loop of the process that asks for it."""

    def __init__(
        self, process: SimulatedProcess, name: str, on_wake: Callable[[], object]
    ) -> None:
        del name
        self._process = process
        self._on_wake = on_wake

    def wake(self) -> None:
        self._process.in_loop(self._on_wake)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._process.in_loop(partial(function, *args))

    def is_alive(self) -> bool:
        return not self._process.world.over


class _Local:
    """``threading.local`` for simulated threads."""

    def __init__(self) -> None:
        object.__setattr__(self, "_of", {})

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        found: dict[str, Any] = self._of.setdefault(current_thread(), {})
        return found

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever was kept
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None


@contextmanager
def simulated_background(world: World) -> Iterator[None]:
    """Context manager: each simulated process has a background loop of its own."""
    found: dict[SimulatedProcess, background.Background] = {}
    of_loops = _LoopsThread()

    def calling_thread() -> SimulatedThread | _LoopsThread:
        return current_thread() if in_thread() else of_loops

    class Threading:
        Lock = SimulatedLock
        Thread = SimulatedThread
        local = _Local
        current_thread = staticmethod(calling_thread)

    def of_process() -> background.Background:
        process = world.running_process()
        if process not in found:
            with patch.object(background, "BackgroundLoop", partial(_Loop, process)):
                found[process] = background.Background()
        return found[process]

    with (
        patch.object(background, "threading", Threading),
        patch.object(callers, "threading", Threading),
        patch.object(twins, "threading", Threading),
        patch.object(twins, "background", of_process),
        # What a simulated process leaves open must not be closed as the real one exits.
        patch.object(twins, "enroll", lambda _: None),
        patch.object(twins, "SystemClock", lambda: world.running_process().clock),
        patch.object(twins, "monotonic", lambda: world.running_process().time),
        patch.object(twins, "random", world.random.random),
    ):
        yield
