"""asyncio for drivers that know nothing else: the loop there is, or one in a thread.

The driver's side of a store lives on a *side*: on asyncio that is the loop of the
``Locks`` itself; under trio, and for the keeper, it is a loop in a thread of its own.
What is spawned there runs as a task that no cancellation of a caller reaches.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.threads import flush_at_exit, start_thread
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError

CANCEL_GRACE = 0.5
"""Seconds for tasks to end whose loop is to end."""

_DONE = object()

T = TypeVar("T")
Spawned = Callable[[], Coroutine[Any, Any, None]]


class CallerLoop(Protocol):
    """Where answers are wanted: an event loop, or a thread that runs what it must."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it there, soon; from any thread."""

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of that loop."""


class DriversLoop(Protocol):
    """The asyncio loop that a driver lives in, for other threads."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it there, soon."""

    def spawn(self, function: Spawned) -> None:
        """Run it as a task there."""


class DriverLoop(Protocol):
    """A running asyncio loop, near or far."""

    def spawn(self, function: Spawned) -> None:
        """Run it as a task there, which must not fail; from home."""

    def begin(self, function: Spawned) -> None:
        """The same, and up to its first await at once, if home is that loop.

        Up to there it must not fail, nor ask whose task it is.
        """

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """Run it at home; from there."""

    async def stop(self) -> None:
        """End the loop if it is our own."""


class _StartedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose first step was done before it had a task."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._awaited: object = None
        self.ended: bool = False
        try:
            self._awaited = coroutine.send(None)
        except StopIteration:
            self.ended = True

    def send(self, value: Any) -> Any:  # noqa: ANN401 - what a loop sends and awaits
        awaited, self._awaited = self._awaited, _DONE
        return self._coroutine.send(value) if awaited is _DONE else awaited

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as above
        self._awaited = _DONE
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:  # noqa: ANN401 - as above
        return self._coroutine.__await__()


class SameLoop:
    """The loop of the caller, who is at home there."""

    def __init__(self, home: CallerLoop) -> None:
        """``home``: that loop."""
        self._home = home
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, function: Spawned) -> None:
        """As a task of the loop itself."""
        self._home.spawn(function)

    def begin(self, function: Spawned) -> None:
        """What a request sends goes out a turn of the loop earlier."""
        begun = _StartedCoroutine(function())
        if not begun.ended:
            task = asyncio.get_running_loop().create_task(begun)
            self._tasks.add(task)  # the loop keeps only weak references
            task.add_done_callback(self._tasks.discard)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """At once."""
        function(*args)

    async def stop(self) -> None:
        """It is not ours."""


class OtherThreadLoop:
    """Somebody else's loop, for a thread that is at home elsewhere."""

    def __init__(self, loop: DriversLoop, home: CallerLoop) -> None:
        """``loop``: where the driver lives."""
        self._loop = loop
        self._home = home

    def spawn(self, function: Spawned) -> None:
        """As a task of that loop."""
        self._loop.call_soon(self._loop.spawn, function)

    def begin(self, function: Spawned) -> None:
        """As ``spawn``."""
        self.spawn(function)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """In the thread."""
        self._home.call_soon(function, *args)

    async def stop(self) -> None:
        """It is not ours."""


class _Loop(asyncio.SelectorEventLoop):
    """Ends at once: it does not wait for who speaks TLS in it to say goodbye."""

    def __init__(self) -> None:
        super().__init__()
        self._secured: WeakSet[asyncio.WriteTransport] = WeakSet()

    async def start_tls(
        self,
        transport: asyncio.BaseTransport,
        *args: Any,  # noqa: ANN401 - as they come
        **named: Any,  # noqa: ANN401
    ) -> asyncio.Transport | None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._secured.add(transport)
        return await super().start_tls(transport, *args, **named)

    def abort(self) -> None:
        for transport in self._secured:
            transport.abort()


class ThreadLoop:
    """A loop in a thread of its own, which starts at once."""

    def __init__(self, home: CallerLoop, name: str) -> None:
        """``name``: of the thread.

        Raises:
            BackendUnavailable: none could be started.
        """
        self._home = home
        self._loop = _Loop()
        self._last: Callable[[], object] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            self._thread = start_thread(self._run, name)
        except BaseException:
            self._loop.close()
            raise
        flush_at_exit(self)

    def spawn(self, function: Spawned) -> None:
        """As a task; dropped if it has ended."""
        self.call_soon(self._start, function)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in that loop, soon; from any thread. Dropped if it has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # closed: nobody is left who waits
            return

    def begin(self, function: Spawned) -> None:
        """As ``spawn``."""
        self.spawn(function)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """In the loop or thread at home."""
        self._home.call_soon(function, *args)

    async def stop(self) -> None:
        """End it; as ``end``."""
        await anyio.to_thread.run_sync(self.end)

    def end(self, last: Callable[[], object] | None = None) -> None:
        """As ``stop``, for a thread; ``last`` is called there before it ends.

        What runs there has ``CANCEL_GRACE`` seconds to end, and is then cancelled.
        """
        if not self._thread.is_alive():  # ended before, or this is a forked child
            return
        self._last = last
        with suppress(RuntimeError):  # about to end
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def finish(self) -> None:
        """As ``FlushesAtExit``."""
        self.end()

    def _start(self, function: Spawned) -> None:
        task = self._loop.create_task(function())
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._clear())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _clear(self) -> None:
        """Let what runs come to its end: what is half connected cannot be cut."""
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
        await asyncio.sleep(0)  # transports that were closed are told so


def check_asyncio(what: str, scheme: str) -> None:
    """Whether an asyncio loop runs here, to which ``what`` belongs.

    Raises:
        ConfigurationError: it is another library.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            what=f"{what} belongs to an asyncio loop",
            hint=f"under trio: connect('{scheme}://…')",
        ) from None


def driver_loop_for(home: CallerLoop, name: str) -> SameLoop | ThreadLoop:
    """The caller's own loop if that is asyncio, else one in a thread."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_task():
        return ThreadLoop(home, name)
    return SameLoop(home)


def submit(side: DriverLoop, function: Callable[[], Awaitable[T]]) -> Pending[T]:
    """What it returns or raises there. Cancelling the caller does not reach it."""
    pending: Pending[T] = Pending()

    async def run() -> None:
        try:
            value = await function()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            side.tell(pending.set_exception, exc)
        except asyncio.CancelledError:
            lost = BackendUnavailable(what="the loop ended under a request")
            side.tell(pending.set_exception, lost)
            raise
        else:
            side.tell(pending.set_result, value)

    side.spawn(run)
    return pending


async def submit_and_wait(side: DriverLoop, function: Callable[[], Awaitable[T]]) -> T:
    """The same, waited for."""
    return await submit(side, function)
