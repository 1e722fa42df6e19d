"""A client process whose threads use the synchronous API; see ``process``."""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from aiorwlock_remote import Held, Locks
from aiorwlock_remote.sync import BackendError, connect
from aiorwlock_remote.sync import Locks as SyncLocks
from aiorwlock_remote.testing.history import History
from tests.soak import names
from tests.soak.client import RECONNECTS, TURNS, Client, Plan, Task, Turn
from tests.soak.counts import Counts

AWAITED = {
    *("acquire", "try_acquire", "release", "extend", "guard", "downgrade", "upgrade"),
    *("adopt", "info", "multi", "release_mutex_lock"),
}
"""Calls of the synchronous API whose async twins are awaited, or entered."""


class Blocking:
    """A synchronous object with the methods of its async twin, which block.

    A coroutine that awaits only such calls never yields: a thread runs it without an
    event loop (``run_in_this_thread``).
    """

    def __init__(self, there: object) -> None:
        self._there = there

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is there
        found = getattr(self._there, name)
        if not inspect.ismethod(found):
            return adapted(found)

        def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
            bound = partial(found, *map(there, args), **kwargs)
            return Call(bound) if name in AWAITED else adapted(bound())

        return call


class Call:
    """A blocking call that is awaited, or entered."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._entered: Any = None

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return adapted(self._function())

    async def __aenter__(self) -> Any:  # noqa: ANN401 - a Held
        self._entered = self._function()
        return adapted(self._entered.__enter__())

    async def __aexit__(self, *error: object) -> None:
        self._entered.__exit__(*error)


def adapted(found: object) -> Any:  # noqa: ANN401 - what a synchronous call returns
    if isinstance(found, tuple):
        return tuple(map(adapted, found))
    ours = type(found).__module__.startswith("aiorwlock_remote.sync.")
    return Blocking(found) if ours else found


def there(given: object) -> object:
    return given._there if isinstance(given, Blocking) else given


def run_in_this_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    with suppress(StopIteration):
        coroutine.send(None)
        raise AssertionError("a thread has no event loop to wait in")


class ThreadClient(Client):
    """The tasks of ``Client``, each in a thread of its own."""

    def __init__(
        self,
        locks: SyncLocks,
        history: History,
        counts: Counts,
        folder: Path,
        plan: Plan,
    ) -> None:
        blocking = cast("Locks", Blocking(locks))
        super().__init__(blocking, history, counts, folder, plan)
        self._stopped = threading.Event()
        self._counting = threading.Lock()
        # The file is locked per open file, so threads need a lock of their own.
        self._accessing = [threading.Lock() for _ in range(names.HOT + names.LONG)]

    def run_threads(self) -> None:
        """Take turns in all threads until SIGTERM, then sweep."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopped.set())
        numbers = range(self._plan.tasks)
        threads = [threading.Thread(target=self._run, args=(n,)) for n in numbers]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        self._stopped.wait()
        self.stopping = True
        for thread in threads:
            thread.join()
        owned = names.owned(self._plan.place, self._plan.tasks)
        run_in_this_thread(self._sweep_some(owned))

    def _run(self, number: int) -> None:
        """Take turns; an error that is not expected ends the process."""
        try:
            run_in_this_thread(self._task(number))
        except BaseException:  # noqa: BLE001 - of a thread, nobody else would see it
            traceback.print_exc()
            os._exit(1)

    def count(self, name: str) -> None:
        with self._counting:
            super().count(name)

    def turns(self) -> list[tuple[Turn, float]]:
        # Without an event loop no scope can cancel: see tests/sync for interrupts.
        cancelled = Task.hot_cancelled, Task.own_cancelled
        return [each for each in TURNS if each[0] not in cancelled]

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - in a thread of its own

    async def guard(self, held: Held) -> None:
        await held.guard(cast("Any", time.time))

    async def look_at_all(self) -> None:
        for _ in cast("Any", self._locks.list("hot")):
            pass

    def use(self, number: int, fence: int) -> int | None:
        with self._accessing[number]:
            return super().use(number, fence)


def opened(url: str, plan: Plan) -> SyncLocks:
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
        # Not entered: that fails while the store is away, and the first turn opens it.
        closing(opened(url, plan)) as locks,
        closing(ThreadClient(locks, history, counts, folder, plan)) as client,
    ):
        client.run_threads()
