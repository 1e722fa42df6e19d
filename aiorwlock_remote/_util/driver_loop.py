"""Event loops for drivers that need asyncio: the caller's loop, or one in a thread.

A driver's coroutines run in a ``DriverLoop``. On asyncio that is the loop of the
``Locks`` itself; under trio, and for the renewal thread, it is a loop in a thread of
its own. Cancelling a caller does not cancel tasks spawned in it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from aiorwlock_remote._util.native import (
    SimpleQueue,
    destroy_hub,
    getaddrinfo,
    gevent_patched,
)
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.threads import flush_at_exit, run_blocking, start_thread
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError

# Seconds that tasks have to end by themselves when their loop stops.
CANCEL_GRACE = 0.5

T = TypeVar("T")
Spawned = Callable[[], Coroutine[Any, Any, None]]


class CallerLoop(Protocol):
    """An event loop, or a thread that runs callbacks: where replies of a driver go."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run the function in this loop or thread soon; callable from any thread."""

    def spawn(self, function: Spawned) -> None: ...


class DriverLoop(Protocol):
    """An asyncio loop that runs a database driver: the caller's loop or another."""

    def spawn(self, function: Spawned) -> None:
        """Run ``function()`` as a task of the driver's loop; it must not raise."""

    def begin(self, function: Spawned) -> None:
        """Run ``function()`` as a task; if possible, up to its first ``await`` at once.

        Before that ``await`` it must not raise, nor ask for the current task.
        """
        self.spawn(function)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """Run ``function(*args)`` in the caller's loop; called in the driver's loop."""

    async def stop(self) -> None:
        """Stop the driver's loop if this object started it; otherwise do nothing."""
        return


class UncancelledStart(Coroutine[Any, Any, None]):
    """Runs a coroutine up to its first ``await`` before a cancellation reaches it.

    If a task is cancelled before it begins, asyncio throws the cancellation at a
    coroutine that has not begun: none of its ``finally`` clauses would run, and a task
    that waits for its end would wait for ever (programs do cancel
    ``asyncio.all_tasks()``).
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._begun = self._ended = False
        self._awaited: object = None

    def begin(self) -> bool:
        """Run up to the first ``await`` now; return False if the coroutine ended."""
        self._begun = True
        try:
            self._awaited = self._coroutine.send(None)
        except StopIteration:
            self._ended = True
        return not self._ended

    def send(self, value: Any) -> Any:  # noqa: ANN401 - what a loop sends and awaits
        if self._ended:
            raise StopIteration
        # The loop's first ``send`` gets what the coroutine already waits for. All later
        # ones are the coroutine's own.
        self.send = self._coroutine.send  # type: ignore[method-assign,assignment]
        if self._begun:
            return self._awaited
        self._begun = True
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as above
        if self._ended:
            raise StopIteration
        if not self._begun:
            self._begun = True
            self._coroutine.send(None)
        self.send = self._coroutine.send  # type: ignore[method-assign,assignment]
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:  # noqa: ANN401 - as above
        return self._coroutine.__await__()


def begin_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Return a task of the running loop that has run up to its first ``await``.

    Called outside of any task. The coroutine must not raise before that ``await``.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    begun, context = UncancelledStart(coroutine), copy_context()
    task = loop.create_task(begun, context=context)
    # Else neither ``asyncio.current_task`` nor anyio's scopes would know the task.
    asyncio._enter_task(loop, task)  # noqa: SLF001 - documented: "Extending" asyncio
    try:
        context.run(begun.begin)
    finally:
        asyncio._leave_task(loop, task)  # noqa: SLF001 - as above
    return task


class SameLoop(DriverLoop):
    """Driver loop that is the caller's own asyncio loop."""

    def __init__(self, home: CallerLoop) -> None:
        self._home = home
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, function: Spawned) -> None:
        self._home.spawn(function)

    def begin(self, function: Spawned) -> None:
        # A request that begins without a task is sent one turn of the loop earlier.
        begun = UncancelledStart(function())
        if begun.begin():
            # The loop keeps only weak references to its tasks: without ours the garbage
            # collector could end a request half way.
            task = asyncio.get_running_loop().create_task(begun)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        function(*args)


class OtherThreadLoop(DriverLoop):
    """Driver loop that another object runs in a thread; ``home``: its caller's loop."""

    def __init__(self, loop: CallerLoop, home: CallerLoop) -> None:
        self._loop = loop
        self._home = home

    def spawn(self, function: Spawned) -> None:
        self._loop.call_soon(self._loop.spawn, function)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        self._home.call_soon(function, *args)


def in_daemon_thread(
    loop: asyncio.AbstractEventLoop, function: Callable[[], T]
) -> asyncio.Future[T]:
    """Call ``function()`` in a thread of its own; return its result as a future.

    Unlike the threads of an executor, the end of the process does not wait for it.
    Raises ``BackendUnavailable`` or ``Unsupported`` if no thread can be started.
    """
    future: asyncio.Future[T] = loop.create_future()

    def end(method: Callable[[Any], None], outcome: object) -> None:
        if not future.done():
            method(outcome)

    def run() -> None:
        told: tuple[Callable[[Any], None], object]
        try:
            told = future.set_result, function()
        except BaseException as exc:  # noqa: BLE001 - raised in the loop
            told = future.set_exception, exc
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, *told)

    start_thread(run, "executor")
    return future


class _Loop(asyncio.SelectorEventLoop):
    # A task that is cancelled while it opens a connection leaves the connection open
    # (test_driver_loop.py), and asyncio waits up to 30 s for the TLS farewell of a
    # silent peer. This loop remembers the transports of its connections and aborts
    # them.

    def __init__(self) -> None:
        super().__init__()
        self._opened: WeakSet[asyncio.WriteTransport] = WeakSet()

    async def create_connection(
        self,
        *args: Any,  # noqa: ANN401 - passed on
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        opened = await super().create_connection(*args, **named)
        self._opened.add(opened[0])
        return opened

    async def create_unix_connection(
        self,
        *args: Any,  # noqa: ANN401 - passed on
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        opened = await super().create_unix_connection(*args, **named)
        self._opened.add(opened[0])
        return opened

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ANN401 - passed on
        func: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - passed on
    ) -> asyncio.Future[Any]:
        # Under gevent the threads of an executor are greenlets of this thread, which
        # the end of the process would wait for in another.
        if executor is not None or not gevent_patched():
            return super().run_in_executor(executor, func, *args)
        return in_daemon_thread(self, partial(func, *args))

    async def getaddrinfo(self, *server: Any, **kind: Any) -> Any:  # noqa: ANN401
        return await self.run_in_executor(None, partial(getaddrinfo, *server, **kind))

    def abort(self) -> None:
        for transport in self._opened:
            transport.abort()


class BackgroundLoop:
    """An asyncio loop in a thread of its own, which the constructor starts.

    After ``end``, functions passed to ``spawn`` are dropped without an error. Raises
    ``BackendUnavailable`` or ``Unsupported`` if no thread can be started.

    Args:
        name: of the thread, for debuggers.
        on_wake: called in the loop soon after ``wake``; one call may serve several.
    """

    def __init__(self, name: str, on_wake: Callable[[], object] | None = None) -> None:
        self._on_wake = on_wake
        self._last: Callable[[], object] | None = None
        self._at_exit = False
        self._tasks: set[asyncio.Task[None]] = set()
        made: SimpleQueue[_Loop | BaseException] = SimpleQueue()
        self._thread = start_thread(partial(self._run, made), name)
        loop = made.get()
        if isinstance(loop, BaseException):  # no file descriptor is left
            raise loop
        self._loop = loop
        flush_at_exit(self)

    def spawn(self, function: Spawned) -> None:
        self.call_soon(self._start, function)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            return

    def wake(self) -> None:
        """Call ``on_wake`` in the loop soon; callable from any thread.

        Cheaper than ``call_soon``, which makes a handle and copies a context.
        """
        try:
            self._waker.send(b"\0")
        except OSError:  # full: the loop will wake anyway; closed: the loop has ended
            return

    def is_alive(self) -> bool:
        """Return whether the loop's thread runs; False in a forked child process."""
        return self._thread.is_alive()

    def end(self, last: Callable[[], object] | None = None) -> None:
        """Stop the loop, and block until its thread has ended.

        Running tasks get ``CANCEL_GRACE`` s to end, then are cancelled. ``last()`` is
        called at the end, in the loop's thread.
        """
        # The loop has ended, or this is a forked child process without that thread.
        if not self._thread.is_alive():
            return
        self._last = last
        with suppress(RuntimeError):  # about to end
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def finish(self) -> None:
        """Do as ``end``, as the process ends."""
        self._at_exit = True
        self.end()

    def _start(self, function: Spawned) -> None:
        task = self._loop.create_task(function())
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def _run(self, made: SimpleQueue[_Loop | BaseException]) -> None:
        # In this thread: under gevent sockets and selectors belong to the hub of the
        # thread that makes them.
        try:
            self._loop = _Loop()
            if self._on_wake is not None:
                self._listen()
        except BaseException as exc:  # noqa: BLE001 - raised in the other thread
            made.put(exc)
            return
        asyncio.set_event_loop(self._loop)
        made.put(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._clear())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            if self._on_wake is not None:
                self._loop.remove_reader(self._woken)
                self._woken.close()
                self._waker.close()
            self._loop.close()
            if not self._at_exit:
                destroy_hub()

    def _listen(self) -> None:
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._loop.add_reader(self._woken, self._was_woken)

    def _was_woken(self) -> None:
        # What does not fit wakes the loop once more.
        self._woken.recv(4096)
        assert self._on_wake is not None
        self._on_wake()

    async def _clear(self) -> None:
        # A connection that is half open cannot be cut off, so its task gets time first.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCEL_GRACE)
        if self._last is not None:
            self._last()
        self._loop.abort()
        # One more turn, in which the aborted transports call ``connection_lost``.
        await asyncio.sleep(0)


class ThreadLoop(BackgroundLoop, DriverLoop):
    """Driver loop in a thread of its own; ``home``: the loop of its caller."""

    def __init__(self, home: CallerLoop, name: str) -> None:
        self._home = home
        super().__init__(name)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        self._home.call_soon(function, *args)

    async def stop(self) -> None:
        await run_blocking(self.end)


def check_asyncio(what: str, scheme: str) -> None:
    """Raise ``ConfigurationError`` unless called in a running asyncio loop.

    The error says that ``what`` needs asyncio, and advises a URL of this ``scheme``.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            what=f"{what} belongs to an asyncio loop",
            hint=f"under trio use a URL: connect('{scheme}://…')",
        ) from None


def driver_loop_for(home: CallerLoop, name: str) -> SameLoop | ThreadLoop:
    """Return ``home`` as driver loop; under trio, a new loop in a thread ``name``."""
    # Programs on asyncio must not pay for importing trio.
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return ThreadLoop(home, name)
    return SameLoop(home)


def submit(
    side: DriverLoop, function: Callable[[], Awaitable[T]], *, at_once: bool = False
) -> Pending[T]:
    """Run ``function()`` in the loop ``side``; return its result as a ``Pending``.

    Cancelling a task that awaits the ``Pending`` does not cancel the function.
    ``at_once``: up to its first ``await`` the function may run before this returns, and
    then in no task (``DriverLoop.begin``).
    """
    pending: Pending[T] = Pending()
    begin = side.begin if at_once else side.spawn
    begin(partial(settle, side, pending, function))
    return pending


async def settle(
    side: DriverLoop, pending: Pending[T], function: Callable[[], Awaitable[T]]
) -> None:
    """Await ``function()``, and set ``pending``, of the caller's loop, to its outcome.

    Runs in the loop ``side``.
    """
    try:
        value = await function()
    except Exception as exc:  # noqa: BLE001 - handed to the caller
        side.tell(pending.set_exception, exc)
    except asyncio.CancelledError:
        # The loop ends. Callers in other threads would wait for ever.
        side.tell(pending.set_exception, loop_stopped())
        raise
    else:
        side.tell(pending.set_result, value)


def loop_stopped() -> BackendUnavailable:
    """Return the error of requests still unanswered when the driver's loop stops."""
    return BackendUnavailable(what="the driver's loop stopped during a request")


async def submit_and_wait(side: DriverLoop, function: Callable[[], Awaitable[T]]) -> T:
    """Run ``function()`` in the loop ``side``; wait for its result or error."""
    return await submit(side, function)
