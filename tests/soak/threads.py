"""A client process whose threads use the synchronous API; see ``process``."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiorwlock_remote.sync import (
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
    Semaphore,
    UpgradeConflict,
    WriterLock,
    connect,
)
from aiorwlock_remote.testing.history import Attempt, EventMode, History
from tests.faults.register import Register
from tests.soak import names
from tests.soak.client import PATIENCE, RECONNECTS, Plan, until
from tests.soak.counts import Counts

Lock = Mutex | ReaderLock | WriterLock | Semaphore
Grant = tuple[Attempt, Held]


class Recorder:
    """The locks, the history and the counters of the process."""

    def __init__(
        self, locks: Locks, history: History, counts: Counts, folder: Path, plan: Plan
    ) -> None:
        self.locks = locks
        self.plan = plan
        self.stopping = threading.Event()
        self._history = history
        self._counts = counts
        self._counting = threading.Lock()
        self._registers = [
            Register(folder / f"register{number}") for number in range(names.HOT)
        ]
        self._accessing = [threading.Lock() for _ in range(names.HOT)]

    def count(self, name: str) -> None:
        with self._counting:
            self._counts.add(name)

    def ask(self, name: str, mode: EventMode) -> Attempt:
        return self._history.ask(name, mode)

    def enter(
        self, lock: Lock, name: str, mode: EventMode, timeout: float = PATIENCE
    ) -> Grant | None:
        attempt = self.ask(name, mode)
        self.count("acquire" if timeout else "try_acquire")
        try:
            held = lock.acquire(timeout) if timeout else lock.try_acquire()
        except LockTimeout:
            held = None
        except LockError:
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

    def leave(self, grant: Grant) -> None:
        attempt, held = grant
        attempt.releasing(until=until(attempt, held))
        self.count("release")
        try:
            attempt.released(ok=held.release())
        except LockLost as exc:
            attempt.lost(exc.reason)
            raise
        except BackendError:
            attempt.released(ok=None)
            raise

    def access(self, number: int, grant: Grant) -> None:
        attempt, held = grant
        for step in (1, 2):
            # The file is locked per open file, so threads need a lock of their own.
            with self._accessing[number]:
                serial = self._registers[number].access(held.fence)
            attempt.access(step=step, serial=serial, until=until(attempt, held))
            if serial is None:
                return
            time.sleep(random.uniform(0, self.plan.body))

    def close(self) -> None:
        for register in self._registers:
            register.close()


class Thread:
    """One thread. Each method is a turn; ``TURNS`` has their weights."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._plan = recorder.plan
        self._number = number
        self._random = random.Random(f"{self._plan.seed} {number}")

    def run(self) -> None:
        """Take turns; an error that is not expected ends the process."""
        try:
            self._take_turns()
        except BaseException:  # noqa: BLE001 - of a thread, nobody else would see it
            traceback.print_exc()
            os._exit(1)

    def _take_turns(self) -> None:
        turns, weights = zip(*TURNS, strict=True)
        recorder = self._recorder
        while not recorder.stopping.is_set():
            (turn,) = self._random.choices(turns, weights)
            try:
                turn(self)
            except AcquireUncertain:
                recorder.count("uncertain")
            except BackendError:
                recorder.count("store unavailable")
                time.sleep(0.02)
            except LockLost:
                recorder.count("lost")
            except NotOwner:
                recorder.count("not owner")

    def _own(self) -> tuple[int, str]:
        which = self._random.randrange(names.OWN)
        number = names.own_number(self._plan.place, self._number, which)
        return number, f"own/{number}"

    def own_mutex(self) -> None:
        number, name = self._own()
        mutex = self._recorder.locks.mutex("own", number)
        timeout = self._random.choice((PATIENCE, 0.0))
        if grant := self._recorder.enter(mutex, name, "W", timeout):
            self._recorder.leave(grant)

    def own_extended(self) -> None:
        number, name = self._own()
        mutex = self._recorder.locks.mutex("own", number)
        grant = self._recorder.enter(mutex, name, "W")
        if grant is None:
            return
        _, held = grant
        try:
            self._recorder.count("extend")
            held.extend()
            self._recorder.count("check")
            held.check()
            self._recorder.count("guard")
            held.guard(time.time)
        finally:
            self._recorder.leave(grant)

    def own_downgraded(self) -> None:
        number, name = self._own()
        writer = self._recorder.locks.rwlock("own", number).writer
        grant = self._recorder.enter(writer, name, "W")
        if grant is None:
            return
        attempt, held = grant
        attempt.releasing(until=until(attempt, held))
        new = self._recorder.ask(name, "R")
        self._recorder.count("downgrade")
        try:
            moved = held.downgrade()
        except LockError as exc:
            new.unknown()
            attempt.lost(type(exc).__name__)
            raise
        moved_grant = self._recorder.granted(new, moved)
        attempt.released(ok=True)
        self._recorder.leave(moved_grant)

    def own_upgraded(self) -> None:
        number, name = self._own()
        reader = self._recorder.locks.rwlock("own", number).reader
        grant = self._recorder.enter(reader, name, "R")
        if grant is None:
            return
        attempt, held = grant
        attempt.releasing(until=until(attempt, held))
        new = self._recorder.ask(name, "W")
        self._recorder.count("upgrade")
        try:
            moved = held.upgrade(PATIENCE)
        except (UpgradeConflict, LockTimeout):
            new.refused()
            self._recorder.count("upgrade conflict")
            self._recorder.leave(grant)
            return
        except LockError as exc:
            new.unknown()
            attempt.lost(type(exc).__name__)
            with suppress(LockError):
                held.release()
            raise
        moved_grant = self._recorder.granted(new, moved)
        attempt.released(ok=True)
        self._recorder.leave(moved_grant)

    def own_info(self) -> None:
        number, _ = self._own()
        self._recorder.count("info")
        self._recorder.locks.mutex("own", number).info()

    def hot(self) -> None:
        number = self._random.randrange(names.HOT)
        mode: EventMode = "W"
        lock: Lock
        if number <= names.UNFAIR:
            fair = number != names.UNFAIR
            lock = self._recorder.locks.mutex("hot", number, fair=fair)
        elif self._random.random() < 0.5:
            lock = self._recorder.locks.rwlock("hot", number).writer
        else:
            lock, mode = self._recorder.locks.rwlock("hot", number).reader, "R"
        timeout = self._random.choice((PATIENCE, PATIENCE, 0.02))
        if grant := self._recorder.enter(lock, f"hot/{number}", mode, timeout):
            try:
                self._recorder.access(number, grant)
            finally:
                self._recorder.leave(grant)

    def permit(self) -> None:
        number = self._random.randrange(names.SEMAPHORES)
        semaphore = self._recorder.locks.semaphore("permits", number, names.LIMIT)
        if grant := self._recorder.enter(semaphore, f"permits/{number}", "W"):
            time.sleep(self._random.uniform(0, self._plan.body))
            self._recorder.leave(grant)


TURNS: list[tuple[Callable[[Thread], None], float]] = [
    (Thread.own_mutex, 40.0),
    (Thread.own_extended, 10.0),
    (Thread.own_downgraded, 5.0),
    (Thread.own_upgraded, 5.0),
    (Thread.own_info, 10.0),
    (Thread.hot, 15.0),
    (Thread.permit, 3.0),
]


def sweep(recorder: Recorder, numbers: list[int]) -> None:
    for number in numbers:
        with suppress(LockError):
            recorder.locks.mutex("own", number).acquire(PATIENCE).release()


def opened(url: str, plan: Plan) -> Locks:
    for _ in range(RECONNECTS - 1):
        with suppress(BackendError):
            return connect(url, lease=plan.lease)
        time.sleep(0.5)
    return connect(url, lease=plan.lease)


def run(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Take turns in all threads until SIGTERM, then sweep."""
    counts = Counts(folder / f"{name}.counts")
    with (
        History(folder / f"{name}.jsonl", process=name) as history,
        opened(url, plan) as locks,
    ):
        recorder = Recorder(locks, history, counts, folder, plan)
        signal.signal(signal.SIGTERM, lambda *_: recorder.stopping.set())
        tasks = [Thread(recorder, number) for number in range(plan.tasks)]
        threads = [threading.Thread(target=task.run) for task in tasks]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        recorder.stopping.wait()
        for thread in threads:
            thread.join()
        sweep(recorder, names.owned(plan.place, plan.tasks))
        recorder.close()
