"""Virtual time, a seeded order of events, and processes that live in it.

A ``SimulatedProcess`` has an asyncio loop, a clock that drifts, and threads; its code
is the library's own. Loops and threads run one at a time, and only while the ``World``
hands them an event, so that a seed determines everything that happens. A process may be
frozen (as by SIGSTOP), may stall in the middle of a callback, and may be killed.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from functools import partial
from itertools import count
from queue import Empty
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

BEGIN = 1_000.0
"""The world's time at which each run begins."""
STEP_SECONDS = 2e-5
"""Virtual time that one turn of an event loop takes."""
CLOCK_RESOLUTION = 1e-6
LATEST_STALL = 1.5
MAX_EVENTS = 100_000
"""Far more than a run needs: it goes round in circles."""


class World:
    """Virtual time in seconds, and the events to come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = BEGIN
        self.stall_rate = 0.0
        """Probability of a stall each time that a process reads its clock."""
        self.interrupt_rate = 0.0
        """Probability of a cancellation each time that a reply or message comes."""
        self.current: SimulatedProcess | None = None
        self.story: list[str] = []
        self.failures: list[str] = []
        self.over = False
        """What happens now is not judged any more."""
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._left = MAX_EVENTS

    @contextmanager
    def no_stalls(self) -> Iterator[None]:
        """Context manager: in its block no process stalls, to judge what it does."""
        rate, self.stall_rate = self.stall_rate, 0.0
        try:
            yield
        finally:
            self.stall_rate = rate

    def running_process(self) -> SimulatedProcess:
        assert self.current is not None
        return self.current

    def at(self, time: float, function: Callable[[], object]) -> None:
        event = max(time, self.now), next(self._order), function
        heapq.heappush(self._events, event)

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        self.at(self.now + seconds, function)

    def tell(self, text: str) -> None:
        if self.over:
            return
        time = self.now if self.current is None else self.current.time
        self.story.append(f"{time - BEGIN:10.6f}  {text}")

    def fail(self, text: str) -> None:
        if not self.over:
            self.tell(f"VIOLATION: {text}")
            self.failures.append(text)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen that happens until that time, or until ``done()``."""
        while self._events and self._events[0][0] <= until and not done():
            self.now, _, function = heapq.heappop(self._events)
            function()
            self._left -= 1
            if self._left <= 0:
                self.fail("no end: something is done again and again")
                return
        if not done():
            self.now = max(self.now, until)


class SimulatedClock:
    """The clock of one process: its origin and speed are its own."""

    def __init__(self, process: SimulatedProcess, origin: float, speed: float) -> None:
        self._process = process
        self._origin = origin
        self._speed = speed

    def now(self) -> float:
        self._process.perhaps_stall()
        return self.local(self._process.time)

    def wall(self) -> float:
        # No lease may depend on it.
        return 3.0 * self.now()

    def local(self, time: float) -> float:
        return self._origin + self._speed * time

    def world_time(self, local: float) -> float:
        return (local - self._origin) / self._speed


class SimulatedProcess:
    """One process: an event loop and threads, which run only as the world says."""

    def __init__(self, world: World, name: str, speed: float) -> None:
        self.world = world
        self.name = name
        self.clock = SimulatedClock(self, world.random.uniform(0, 1e6), speed)
        self.loop = ProcessLoop(self)
        self.dead = False
        self.was_cut = False
        self.haunted = False
        """Whether a request of its was carried out after it was given up."""
        self.troubled_until = 0.0
        """Until when it was stopped, or cut off, and could learn of nothing."""
        self.interrupt: Callable[[], object] = lambda: None
        """Cancels one of its tasks."""
        self._free_at = 0.0

    @property
    def time(self) -> float:
        """The world's time at which this process is: it may be ahead after a stall."""
        return max(self.world.now, self._free_at)

    def freeze(self, seconds: float) -> None:
        """Stop loop and threads for so long, as SIGSTOP does."""
        self._free_at = max(self._free_at, self.world.now + seconds)
        self.in_trouble(self._free_at)

    def in_trouble(self, until: float) -> None:
        self.troubled_until = max(self.troubled_until, until)

    def perhaps_stall(self) -> None:
        """Be stopped right here, between two instructions, if chance wants it."""
        world = self.world
        if world.stall_rate and world.random.random() < world.stall_rate:
            seconds = world.random.uniform(0.001, LATEST_STALL)
            self._free_at = self.time + seconds
            self.in_trouble(self._free_at)
            world.tell(f"{self.name} stalls for {seconds:.3f} s")

    def perhaps_interrupt(self) -> None:
        """Cancel a task in the very turn in which a reply came, if chance wants it."""
        if self.world.random.random() < self.world.interrupt_rate:
            self.interrupt()

    def kill(self) -> None:
        """End the process without a trace, as SIGKILL does."""
        self.dead = True

    def revive(self) -> None:
        """Let it run again, to take it down in good order."""
        self.dead, self._free_at = False, 0.0
        self.loop.begin_again()

    def run_soon(self, function: Callable[[], object], time: float = 0.0) -> None:
        """Run ``function()`` in this process at that time, or once it runs again."""

        def run() -> None:
            if self.dead:
                return
            if self._free_at > self.world.now:
                self.world.at(self._free_at, run)
                return
            before, self.world.current = self.world.current, self
            try:
                function()
            finally:
                self.world.current = before

        self.world.at(max(time, self.time), run)

    def start(
        self, coroutine: Coroutine[Any, Any, Any], name: str
    ) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine, name=name)
        self.loop.turn_soon()
        return task

    def in_loop(self, function: Callable[[], object], time: float = 0.0) -> None:
        """Call ``function()`` as a callback of the loop, at that time or later."""
        self.run_soon(lambda: self.loop.call_soon_threadsafe(function), time)


class _NoEvents:
    def select(self, timeout: float | None = None) -> list[Any]:
        del timeout
        return []


class ProcessLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, whose clock is the process's, one turn at a time."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._process = process
        self._selector = _NoEvents()
        self._clock_resolution = CLOCK_RESOLUTION
        self._turn_at = float("inf")
        self._blocked_until = 0.0
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self._process.clock.local(self._process.time)

    def block(self, seconds: float) -> None:
        """Run nothing for so long, as if a task computed; the threads go on.

        The task has to await something at once: it would not notice the time.
        """
        self._blocked_until = self._process.time + seconds
        self._process.in_trouble(self._blocked_until)

    def begin_again(self) -> None:
        # The turn that was planned has been dropped, if the process was dead then.
        self._turn_at, self._blocked_until = float("inf"), 0.0
        self.turn_soon()

    def turn_soon(self, time: float = 0.0) -> None:
        time = max(time, self._process.time, self._blocked_until)
        if time < self._turn_at:
            self._turn_at = time
            self._process.run_soon(partial(self._turn, time), time)

    def _turn(self, planned: float) -> None:
        # One that was planned for later than another, which came first, is left out.
        if self.is_closed() or planned != self._turn_at:
            return
        self._turn_at = float("inf")
        if self._blocked_until > self._process.time:
            self.turn_soon()
            return
        with running(self):
            self._run_once()  # type: ignore[attr-defined]  # BaseEventLoop's own
        if self._ready:  # type: ignore[attr-defined]
            self.turn_soon(self._process.time + STEP_SECONDS)
        elif self._scheduled:  # type: ignore[attr-defined]
            due = self._scheduled[0].when()  # type: ignore[attr-defined]
            self.turn_soon(self._process.clock.world_time(due))

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        self.turn_soon()

    def _failed(self, loop: object, context: dict[str, Any]) -> None:
        del loop
        error = context.get("exception")
        self._process.world.fail(f"{context.get('message')}: {error!r}")


@contextmanager
def running(loop: asyncio.BaseEventLoop) -> Iterator[None]:
    """Context manager: ``loop`` is the running loop of this thread."""
    events: Any = asyncio.events
    before = events._get_running_loop()
    loop._thread_id = threading.get_ident()  # type: ignore[attr-defined]
    events._set_running_loop(loop)
    try:
        yield
    finally:
        events._set_running_loop(before)
        loop._thread_id = None  # type: ignore[attr-defined]


class SimulatedThread:
    """A thread of a process: it runs until it waits, and goes on when it is woken."""

    def __init__(
        self, process: SimulatedProcess, run: Callable[[], object], name: str
    ) -> None:
        self.name = name
        self._process = process
        self._interrupt: BaseException | None = None
        self._ended: list[Callable[[], object]] = []
        self._wake_number = 0
        self._alive = True
        self._greenlet = greenlet(self._run_all)
        self._function = run
        process.run_soon(self._go_on)

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        """Block the calling thread until this one has ended."""
        if self._alive:
            waiter = current_thread()
            self._ended.append(waiter.wake)
            waiter.wait(timeout)

    def when_ended(self, function: Callable[[], object]) -> None:
        if self._alive:
            self._ended.append(function)
        else:
            function()

    def wait(self, timeout: float | None = None) -> None:
        """Block this thread until ``wake``, or for so many seconds of its clock."""
        self._wake_number += 1
        if timeout is not None:
            number, clock = self._wake_number, self._process.clock
            local = clock.local(self._process.time) + timeout
            time = clock.world_time(local) + CLOCK_RESOLUTION
            self._process.run_soon(lambda: self._wake_if(number), time)
        hub = self._greenlet.parent
        assert hub is not None
        events: Any = asyncio.events
        loop = events._get_running_loop()  # of this thread: it may run one
        hub.switch()
        events._set_running_loop(loop)
        if self._interrupt is not None:
            error, self._interrupt = self._interrupt, None
            raise error

    def interrupt(self, error: BaseException) -> None:
        """Raise ``error`` where the thread waits, as a signal handler does."""
        self._interrupt = error
        self.wake()

    def wake(self) -> None:
        """Let the thread go on, if it waits; callable from anywhere in its process."""
        number = self._wake_number
        self._process.run_soon(lambda: self._wake_if(number))

    def _wake_if(self, number: int) -> None:
        if self._alive and number == self._wake_number:
            self._wake_number += 1
            self._go_on()

    def _go_on(self) -> None:
        events: Any = asyncio.events
        before = events._get_running_loop()
        events._set_running_loop(None)  # a thread beside the loop's
        try:
            # Whoever runs the world now is whom the thread returns to.
            self._greenlet.parent = getcurrent()
            self._greenlet.switch()
        finally:
            events._set_running_loop(before)

    def _run_all(self) -> None:
        _threads[getcurrent()] = self
        try:
            self._function()
        except Exception as exc:  # noqa: BLE001 - a violation, reported with the others
            self._process.world.fail(f"a thread of {self._process.name}: {exc!r}")
        finally:
            del _threads[getcurrent()]
            self._alive = False
            for function in self._ended:
                function()


_threads: dict[Any, SimulatedThread] = {}


def in_thread() -> bool:
    return getcurrent() in _threads


def current_thread() -> SimulatedThread:
    return _threads[getcurrent()]


class ThreadsLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, run by simulated threads: by one at a time."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._process = process
        self._selector = self
        self._clock_resolution = CLOCK_RESOLUTION
        self._waiting: SimulatedThread | None = None
        self._called = False
        self._stopping: bool = False
        self.set_exception_handler(process.loop._failed)

    def time(self) -> float:
        return self._process.clock.local(self._process.time)

    def run_forever(self) -> None:
        with running(self):
            while not self._stopping:
                self._run_once()  # type: ignore[attr-defined]  # BaseEventLoop's own
            self._stopping = False

    def select(self, timeout: float | None = None) -> list[Any]:
        """Be its own selector: wait for a call from elsewhere, or for so long."""
        if not self._called and timeout != 0:
            self._waiting = thread = current_thread()
            thread.wait(timeout)
            self._waiting = None
        self._called = False
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        self._called = True
        if self._waiting is not None:
            self._waiting.wake()


class SimulatedCondition:
    """``threading.Condition`` for simulated threads."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiting: list[SimulatedThread] = []

    def wait(self, timeout: float | None = None) -> None:
        thread = current_thread()
        self._waiting.append(thread)
        self._lock.release()
        thread.wait(timeout)
        self._lock.acquire()
        if thread in self._waiting:
            self._waiting.remove(thread)

    def notify(self) -> None:
        for thread in self._waiting:
            thread.wake()


class SimulatedEvent:
    """``threading.Event`` for simulated threads."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[SimulatedThread] = []

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            thread.wake()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            thread = current_thread()
            self._waiting.append(thread)
            thread.wait(timeout)
            self._waiting.remove(thread)
        return self._is_set


class SimulatedLock:
    """``threading.Lock`` for simulated threads, which may wait while they have it."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[SimulatedThread] = deque()

    def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        while self._taken and blocking:
            thread = current_thread()
            self._waiting.append(thread)
            try:
                thread.wait(timeout)
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
            blocking = timeout is None
        if self._taken:
            return False
        self._taken = True
        return True

    def release(self) -> None:
        self._taken = False
        if self._waiting:
            self._waiting.popleft().wake()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class SimulatedQueue(Generic[T]):
    """``queue.SimpleQueue`` for simulated threads."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: list[SimulatedThread] = []

    def put(self, item: T) -> None:
        self._items.append(item)
        for thread in self._waiting:
            thread.wake()

    def get(self, timeout: float | None = None) -> T:
        thread = current_thread()
        while not self._items:
            self._waiting.append(thread)
            thread.wait(timeout)
            self._waiting.remove(thread)
            if timeout is not None and not self._items:
                raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items
