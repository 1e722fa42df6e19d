"""The event loop of the synchronous API, and how other threads call into it.

The loop has a thread of its own, even if only one thread uses locks. A calling thread
may be hit anywhere: a signal handler (Ctrl-C, a time limit of Celery) raises its error
between any two instructions of the main thread, ``PyThreadState_SetAsyncExc`` does so
in any thread, and a thread that is deep in recursion has no frames left. None of that
must hit the inside of a lock, which may be another thread's. It hits a thread that only
waits for a reply (docs/architecture.md, "Synchronous calls").

Under gevent the callers are greenlets, and this thread is still a real one: it has a
hub of its own, in which its asyncio loop waits.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, partial
from queue import Empty
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

import anyio

from aiorwlock_remote._util.driver_loop import BackgroundLoop, begin_task
from aiorwlock_remote.errors import Closed, ConfigurationError
from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop
from aiorwlock_remote.runtime.event_loop import run_logged
from aiorwlock_remote.sync.callers import (
    Caller,
    Mailbox,
    Signal,
    current_caller,
    new_mailbox,
    new_signal,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CHECK_INTERVAL = 1.0
"""Seconds after which a thread that waits looks whether the loop still runs. Between
two looks, Windows and ``PyThreadState_SetAsyncExc`` may interrupt the wait."""
EXIT_TIMEOUT = 5.0
"""Seconds that the end of the process waits until all grants are given back."""

_calling_thread: ContextVar[Caller]
_calling_thread = ContextVar("calling_thread")


class ThreadsTask:
    """A task of its own on behalf of a thread, which acts beside it.

    What the task holds is not the thread's, but ends with the thread.
    """

    def __init__(self, thread: Caller) -> None:
        self._thread = thread
        self.name: str = thread.name

    def is_alive(self) -> bool:
        return self._thread.is_alive()


class ThreadsEventLoop(AsyncioEventLoop):
    """The background loop, as the locks see it: its tasks are the calling threads.

    So ``WouldDeadlock`` is raised if a *thread* holds the resource already, and other
    programs are shown the name of the thread.
    """

    def current_task(self) -> object:
        return _calling_thread.get()

    def task_name(self) -> str:
        return _calling_thread.get().name

    def finished(self, task: weakref.ref[Any]) -> bool:
        thread: Caller | None = task()
        return thread is None or not thread.is_alive()


class Background:
    """The event loop of this process, in a thread of its own, for calls of all threads.

    Invariants (tests/sync/test_interrupts.py, test_exit.py):

    - A call that is interrupted is cancelled in the loop. Its result, if it has one
      already, is dropped there, and a grant that is dropped is given back.
    - A call is never cancelled before its first step: a release is sent.
    - The next call of a thread begins when the one that was interrupted has ended: the
      thread holds nothing of it any more (test_an_interrupted_acquire_may_be_repeated).
    - A forked child process uses nothing of its parent's loop.
    - A call is queued before the loop is woken, and the loop notes that it is awake
      before it looks into the queue: so one wake-up serves many calls, and no call
      waits for the next one (test_many_threads_call_at_once). An interrupt between the
      note and the wake-up withdraws the note
      (test_an_interrupted_wake_up_keeps_nobody_waiting).
    - What a thread cannot finish for want of frames harms no other thread
      (test_at_each_depth_of_the_stack).
    """

    def __init__(self) -> None:
        self.forked: bool = False
        self._loop = BackgroundLoop("sync", self._start_all)
        self._calls: deque[_Call[Any]] = deque()
        self._woken = False
        # The loop keeps only weak references to its tasks.
        self._running: set[_Call[Any]] = set()
        # By thread: its call that was interrupted, and may not have ended yet.
        self._interrupted: weakref.WeakKeyDictionary[Caller, _Call[Any]]
        self._interrupted = weakref.WeakKeyDictionary()

    def run(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Await ``function(*args, **kwargs)`` in the loop; block until that has ended.

        Raises:
            Closed: the loop has ended with the process, or is the parent process's.
            ConfigurationError: an event loop runs in this thread.
        """
        refuse_event_loop()
        return self._wait(_Call(function, args, kwargs), None)

    async def run_from_loop(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Await ``function(*args, **kwargs)`` in the background loop; called in another
        asyncio loop, which runs on meanwhile. If the caller is cancelled, so is the
        call.

        Raises:
            Closed: the loop has ended with the process, or is the parent process's.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def told() -> None:
            if not ended.done():
                ended.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(told)

        call = _Call(function, args, kwargs, tell)
        self.start(call)
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=CHECK_INTERVAL)
                if not ended.done():
                    self._check(0.0, None)
        except BaseException:
            self.abandon(call)
            raise
        return call.result()

    def run_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` in the loop, without waiting for it."""
        if not self.forked:
            self._loop.call_soon(function, *args)

    def spawn(self, function: Callable[[], Awaitable[object]]) -> None:
        """Await ``function()`` in the loop, without waiting for that."""
        if not self.forked:
            self.start(_Call(function, (), {}, _nobody_waits))

    def finish(self, *functions: Callable[[], Awaitable[None]]) -> None:
        """Await all ``functions`` for ``EXIT_TIMEOUT`` s at most, then end the loop."""
        if self.forked:
            return

        async def together() -> None:
            closing = [asyncio.ensure_future(run_logged(one)) for one in functions]
            await asyncio.wait(closing, timeout=EXIT_TIMEOUT)

        if functions:
            self._wait(_Call(together, (), {}), EXIT_TIMEOUT + CHECK_INTERVAL)
        self._loop.finish()

    def _wait(self, call: _Call[T], limit: float | None) -> T:
        if self._interrupted:
            call.before = self._interrupted.pop(call.thread, None)
        try:
            self.start(call)
            checks = 0
            assert call.done is not None
            while not call.done.acquire(timeout=CHECK_INTERVAL):
                checks += 1
                self._check(checks * CHECK_INTERVAL, limit)
        except BaseException:
            self.abandon(call)
            self._interrupted[call.thread] = call
            raise
        return call.result()

    def start(self, call: _Call[Any]) -> None:
        """Begin a call, without waiting for it."""
        if self.forked:
            raise Closed(reason="forked")
        self._calls.append(call)
        if not self._woken:
            try:
                self._woken = True
                self._loop.wake()
            except BaseException:
                # Interrupted, perhaps before the loop was woken: all others would wait.
                self._woken = False
                self._loop.call_soon(self._start_all)
                raise

    def abandon(self, call: _Call[Any]) -> None:
        """End a call soon, as its thread waits no longer; callable from any thread."""
        self.run_soon(self._abandon, call)

    def _start_all(self) -> None:
        self._woken = False
        while self._calls:
            call = self._calls.popleft()
            self._running.add(call)
            call.task = begin_task(call.run(self))

    def _abandon(self, call: _Call[Any]) -> None:
        # A release must be sent before it is cancelled
        # (test_an_interrupted_release_is_carried_out).
        self._start_all()
        call.drop()

    async def wait_dropped(self, call: _Call[Any]) -> None:
        """Wait until a call has ended that was interrupted, and its grant is released,
        or the release has begun.
        """
        await call.dropped.wait()
        if call.task is not None:
            await asyncio.wait([call.task])
        # The destructor of a grant has queued the release.
        asyncio.get_running_loop().call_soon(self._start_all)
        await asyncio.sleep(0)

    def ended(self, call: _Call[Any]) -> None:
        """Note that the task of a call is about to end; called in the loop."""
        self._running.discard(call)

    def check_alive(self) -> None:
        """Raise ``Closed`` if the loop has ended."""
        self._check(0.0, None)

    def _check(self, waited: float, limit: float | None) -> None:
        if not self._loop.is_alive() or (limit is not None and waited > limit):
            raise Closed


class _Call(Generic[T]):
    """One call of a thread into the loop, and its outcome."""

    def __init__(
        self,
        function: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        tell: Callable[[], object] | None = None,
    ) -> None:
        self.done: Signal | None = None
        if tell is None:
            self.done = new_signal()
            tell = self.done.release
        self._tell: Callable[[], object] = tell
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self.thread: Caller = current_caller()
        self.before: _Call[Any] | None = None
        """The call of the same thread that was interrupted."""
        self.task: asyncio.Task[None] | None = None
        """Set when the call has begun."""
        self._results: list[T] = []
        self._error: BaseException | None = None

    @cached_property
    def dropped(self) -> asyncio.Event:
        """Set when the thread waits no longer; used in the loop only."""
        return asyncio.Event()

    async def run(self, loop: Background) -> None:
        """Make the call, in the loop's thread."""
        _calling_thread.set(self.thread)
        before, self.before = self.before, None
        try:
            if before is not None:
                await loop.wait_dropped(before)
            self._results.append(await self._function(*self._args, **self._kwargs))
        except asyncio.CancelledError:
            self._error = Closed()
        except BaseException as exc:  # noqa: BLE001 - raised in the thread
            self._error = exc
        finally:
            loop.ended(self)
            self._tell()

    def drop(self) -> None:
        """Cancel the call, and drop its result; called in the loop."""
        if self.task is not None:  # else the thread was interrupted before the call
            self.task.cancel()
        self._results.clear()
        self.dropped.set()

    def result(self) -> T:
        """Return the result of the call, or raise its error; called once."""
        error, self._error = self._error, None
        if error is None:
            return self._results.pop()
        try:
            raise error
        finally:
            del error  # else a cycle of references: error, traceback, frame


def begin_own_task() -> None:
    """Let the running task hold locks of its own, beside its thread."""
    thread = _calling_thread.get()
    assert not isinstance(thread, ThreadsTask)
    _calling_thread.set(ThreadsTask(thread))


def _nobody_waits() -> None: ...


class _BodyFailed(Exception):
    pass


_ENTERED = object()


class Conversation(Generic[T]):
    """A call in the loop that has work done by the thread which waits for it.

    So an async function can be given work that blocks (``run``), and an async context
    manager a body that blocks (``enter``, ``leave``), each in one task.

    Invariants (tests/sync/test_recipes.py):

    - A lost lock cancels the task, and cannot stop the thread. The task does not go on
      before the thread has done its work: a lock is not acquired again meanwhile.
    - A thread that is interrupted, or dies in its body, ends the call.
    """

    def __init__(
        self, loop: Background, function: Callable[[Conversation[T]], Awaitable[T]]
    ) -> None:
        self._loop = loop
        self._turns: Mailbox[Callable[[], object] | object | None] = new_mailbox()
        self._call = _Call(function, (self,), {}, partial(self._turns.put, None))
        # Of a body: made in the loop.
        self._left: asyncio.Event | None = None
        self._failed = False

    def run(self) -> T:
        """Begin the call, do its work in this thread, and return its result."""
        refuse_event_loop()
        self._loop.start(self._call)
        self._talk()
        return self._call.result()

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Return what ``work()`` returns, called in the thread that waits."""
        ended, results, errors = asyncio.Event(), list[R](), list[BaseException]()

        def turn() -> None:
            try:
                results.append(work())
            except BaseException as exc:  # noqa: BLE001 - raised in the call
                errors.append(exc)
            finally:
                self._loop.run_soon(ended.set)

        self._turns.put(turn)
        with anyio.CancelScope(shield=True):
            await ended.wait()
        if errors:
            raise errors.pop()
        return results.pop()

    def enter(self) -> bool:
        """Begin the call; return True when it is in ``body``, False if it has ended."""
        refuse_event_loop()
        self._loop.start(self._call)
        return self._talk()

    async def body(self) -> None:
        """Wait until the thread leaves its body; raise an error if that failed."""
        self._left = asyncio.Event()
        self._turns.put(_ENTERED)
        await self._left.wait()
        if self._failed:
            raise _BodyFailed

    def leave(self, *, failed: bool, wait: bool) -> None:
        """Let ``body`` return. ``wait``: until the call has ended; raise its error.

        ``failed``: the body raised an error, which is not to be replaced by another.
        """
        if self._loop.forked:
            return
        self._failed = failed
        assert self._left is not None
        self._loop.run_soon(self._left.set)
        if not wait:
            return
        self._talk()
        try:
            self._call.result()
        except _BodyFailed:
            return
        except Exception:
            if not failed:
                raise

    def result(self) -> T:
        """Return the result of the call that has ended, or raise its error."""
        return self._call.result()

    def _talk(self) -> bool:
        try:
            while True:
                try:
                    turn = self._turns.get(timeout=CHECK_INTERVAL)
                except Empty:
                    self._loop.check_alive()
                    continue
                if turn is None or turn is _ENTERED:
                    return turn is _ENTERED
                cast("Callable[[], object]", turn)()
        except BaseException:
            self._loop.abandon(self._call)
            raise


def refuse_event_loop() -> None:
    """Raise ``ConfigurationError`` if an event loop runs in this thread."""
    trio = sys.modules.get("trio")
    in_trio = trio is not None and trio.lowlevel.in_trio_run()
    if not in_trio:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
    raise ConfigurationError(
        what="aiorwlock_remote.sync would block the event loop of this thread",
        hint="here use aiorwlock_remote.connect, and the same names with `await`",
    )


# ------------------------------------------------------------------ the one instance


class UsesBackground(Protocol):
    """An object that has something open in the background loop."""

    def forked(self) -> None:
        """Forget what the parent process has open; called in a forked child."""

    async def aclose(self) -> None:
        """Close what is open, as the process ends; called in the loop."""


class _Process:
    # What this process has; a forked child gets another one.
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.background: Background | None = None


_process = _Process()
_users: weakref.WeakSet[UsesBackground] = weakref.WeakSet()
# Objects of the parent process. Their destructors would close sockets, and remove them
# from the parent's epoll, which the child shares.
_inherited: list[object] = []


def background() -> Background:
    """Return the loop of this process; start it if need be."""
    with _process.lock:
        found = _process.background
        if found is None:
            _process.background = found = Background()
            # Now, not at the import: exit functions run in the reverse order, so that
            # this one comes before those of the modules imported by now.
            atexit.register(_finish, found)
        return found


def enroll(user: UsesBackground) -> None:
    """Close ``user`` when the process ends; call its ``forked`` in a forked child."""
    _users.add(user)


def keep(inherited: object) -> None:
    """Keep an object of the parent process, whose destructor must not run here."""
    _inherited.append(inherited)


def _finish(loop: Background) -> None:
    # A forked child has copied the exit functions of its parent, too.
    if not loop.forked:
        loop.finish(*(user.aclose for user in list(_users)))


def _forget() -> None:
    global _process  # noqa: PLW0603 - its lock may be held by a thread of the parent
    if _process.background is not None:
        _process.background.forked = True
        keep(_process)
    _process = _Process()
    for user in list(_users):
        user.forked()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
