"""The async API in front of the synchronous one, so that the conformance suite runs.

Each asyncio task has a thread, in which its calls of the synchronous API run. If the
task is cancelled, its thread is interrupted as Ctrl-C or a time limit would do it: by
an exception that comes at any instruction. A lost grant cancels the body of ``async
with``, as a program does whose thread looks at ``check()``.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import anyio

import aiorwlock_remote as aio
from aiorwlock_remote import sync
from aiorwlock_remote.sync.background import Background

LOSS_POLL = 0.005

#: The async class of each synchronous one.
SOURCES: dict[type, type] = {
    sync.Held: aio.Held,
    sync.Locks: aio.Locks,
    sync.Mutex: aio.Mutex,
    sync.Semaphore: aio.Semaphore,
    sync.RWLock: aio.RWLock,
    sync.ReaderLock: aio.ReaderLock,
    sync.WriterLock: aio.WriterLock,
}
ACQUIRES = {"acquire", "multi"}


class Interrupted(BaseException):
    """Raised in a thread whose task is cancelled."""


class Job:
    """A call in the thread of a task."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.over = threading.Event()
        self.sent = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._function: Callable[[], object] | None = function
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = self._delivered = self._ended = False

    def run(self) -> None:
        """Run the function; leave no interrupt that would hit what comes next."""
        try:
            self._run()
        except Interrupted as exc:
            self._delivered, self.error = True, exc
            self._run()
        if self._interrupted:
            self.result = None
        self.over.set()
        self.sent.set()

    def interrupt(self) -> None:
        with self._lock:
            if self._ended or self._interrupted:
                # The traceback of the cancelled task would keep a grant.
                self.result = None
                return
            self._interrupted = True
            if self._thread is None:
                self._delivered = True
            else:
                set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
                set_async_exc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(Interrupted)
                )

    def _run(self) -> None:
        # The interrupt may come at each instruction; then this is called once more.
        function, self._function = self._function, None
        with self._lock:
            self._thread = threading.get_ident()
        if function is not None and not self._interrupted:
            try:
                self.result = function()
            except Interrupted:
                raise
            except BaseException as exc:  # noqa: BLE001 - raised in the task
                self.error = exc
        with self._lock:
            self._ended = True
            pending = self._interrupted and not self._delivered
        while pending:
            time.sleep(0.001)


class TaskThread:
    """The thread of a task; ends with the task."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=task.get_name())
        self._thread.daemon = True
        self._thread.start()
        task.add_done_callback(lambda _: self._jobs.put(None))

    def submit(self, function: Callable[[], object]) -> Job:
        job = Job(function)
        self._jobs.put(job)
        return job

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            _running.job = job
            job.run()
            _running.job = None
            del job  # its result may be a grant, which is given back when dropped


_running = threading.local()
_threads: WeakKeyDictionary[asyncio.Task[Any], TaskThread] = WeakKeyDictionary()


class TellingBackground(Background):
    """The background loop, which tells when a call of a thread has been sent."""

    def start(self, call: Any) -> None:  # noqa: ANN401 - of a private class
        super().start(call)
        job: Job | None = getattr(_running, "job", None)
        if job is not None:
            job.sent.set()


def my_thread() -> TaskThread:
    task = asyncio.current_task()
    assert task is not None
    thread = _threads.get(task)
    if thread is None:
        thread = _threads[task] = TaskThread(task)
    return thread


def outcome(job: Job) -> Any:  # noqa: ANN401 - any function's
    error, result = job.error, job.result
    job.error = job.result = None
    if error is None:
        return result
    try:
        raise error
    finally:
        del error


def blocking(function: Callable[[], object]) -> Any:  # noqa: ANN401 - as above
    """Run a function in the thread of this task, and block the loop meanwhile."""
    job = my_thread().submit(function)
    job.over.wait()
    return outcome(job)


async def waiting(function: Callable[[], object]) -> Any:  # noqa: ANN401 - as above
    """Run a function in the thread of this task; interrupt it if cancelled."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> object:
        try:
            return function()
        finally:
            loop.call_soon_threadsafe(done.set)

    job = my_thread().submit(run)
    # As an await would: what the next task calls comes behind it.
    job.sent.wait()
    try:
        while not job.over.is_set():
            await done.wait()
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        job.interrupt()
        raise
    return outcome(job)


def adapted(there: Any) -> Any:  # noqa: ANN401 - what a synchronous call returns
    if isinstance(there, sync.Multi):
        return tuple(map(adapted, there))
    return Adapted(there) if type(there) in SOURCES else there


def there(given: Any) -> Any:  # noqa: ANN401 - what a case passes
    return given.there if isinstance(given, Adapted) else given


class Adapted:
    """A synchronous object with the methods of its async twin."""

    def __init__(self, there: Any) -> None:  # noqa: ANN401 - one of SOURCES
        self.there = there
        self._entered: list[Entered] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is there
        source = inspect.getattr_static(SOURCES[type(self.there)], name, None)
        if not callable(source):
            return adapted(getattr(self.there, name))
        method = getattr(self.there, "close" if name == "aclose" else name)

        def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
            bound = partial(method, *map(there, args), **options(kwargs))
            if inspect.iscoroutinefunction(source):
                return self._awaited(bound)
            if inspect.isasyncgenfunction(source):
                return self._listed(bound)
            if name in ACQUIRES:
                return Acquiring(bound)
            return adapted(blocking(bound))

        return call

    async def _awaited(self, bound: Callable[[], object]) -> Any:  # noqa: ANN401
        return adapted(await waiting(bound))

    async def _listed(self, bound: Callable[[], Any]) -> AsyncIterator[Any]:
        for item in await waiting(lambda: list(bound())):
            yield item

    async def __aenter__(self) -> Any:  # noqa: ANN401 - a Held, or itself
        if isinstance(self.there, sync.Locks):
            return self
        entered = Entered(self.there)
        held = await entered.enter()
        self._entered.append(entered)
        return held

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(self.there, sync.Locks):
            await waiting(self.there.close)
            return
        mine = [one for one in self._entered if one.task is asyncio.current_task()]
        if not mine:
            await waiting(partial(self.there.__exit__, exc_type, exc, traceback))
            raise AssertionError("it was left without being entered")
        self._entered.remove(mine[-1])
        await mine[-1].leave(exc_type, exc, traceback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adapted) and self.there is other.there

    def __hash__(self) -> int:
        return hash(self.there)

    def __repr__(self) -> str:
        return repr(self.there)

    def __bool__(self) -> bool:
        return bool(self.there)


class Entered:
    """An entered ``with``: a loss cancels its body."""

    def __init__(self, entering: Any) -> None:  # noqa: ANN401 - has __enter__
        self.task = asyncio.current_task()
        self._entering = entering
        self._scope = anyio.CancelScope()
        self._watching: asyncio.Task[None] | None = None

    async def enter(self) -> Any:  # noqa: ANN401 - a Held, or several
        got = await waiting(self._entering.__enter__)
        grants = got if isinstance(got, sync.Multi) else (got,)
        self._scope.__enter__()
        if any(on_loss(held) == "raise" for held in grants):
            self._watching = asyncio.create_task(self._watch(grants))
        return adapted(got)

    async def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._scope.__exit__(exc_type, exc, traceback):
            exc_type = exc = traceback = None
        await waiting(partial(self._entering.__exit__, exc_type, exc, traceback))

    async def _watch(self, grants: tuple[sync.Held, ...]) -> None:
        while not any(self._is_over(held) for held in grants):  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(LOSS_POLL)
        self._scope.cancel()

    @staticmethod
    def _is_over(held: sync.Held) -> bool:
        try:
            held.guard(lambda: None)
        except (aio.LockLost, aio.Closed):
            return True
        except aio.NotOwner:  # released in the body, or moved
            return False
        return False


def on_loss(held: sync.Held) -> object:
    return held._twin._state.options.on_lost


class Acquiring:
    """What ``acquire()`` and ``multi()`` return: awaited, or entered."""

    def __init__(self, bound: Callable[[], Any]) -> None:
        self._bound = bound
        self._entered: Entered | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._get().__await__()

    async def _get(self) -> Any:  # noqa: ANN401 - a Held, or several
        return adapted(await waiting(self._bound))

    async def __aenter__(self) -> Any:  # noqa: ANN401 - as above
        self._entered = Entered(await waiting(self._bound))
        return await self._entered.enter()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._entered is not None
        await self._entered.leave(exc_type, exc, traceback)


def options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments; a callback is called in the loop of the test."""
    on_lost = kwargs.get("on_lost")
    if callable(on_lost):
        loop = asyncio.get_running_loop()

        def tell(held: sync.Held) -> None:
            loop.call_soon_threadsafe(on_lost, adapted(held))

        kwargs = {**kwargs, "on_lost": tell}
    return kwargs


class Connecting:
    """``connect`` of the synchronous API, awaited or entered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - connect's
        self._bound = partial(sync.connect, *args, **options(kwargs))
        self._locks: Any = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._open().__await__()

    async def _open(self) -> Any:  # noqa: ANN401 - an adapted Locks
        return adapted(await waiting(self._bound))

    async def __aenter__(self) -> Any:  # noqa: ANN401 - as above
        self._locks = await self._open()
        return self._locks

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._locks.__aexit__(exc_type, exc, traceback)
