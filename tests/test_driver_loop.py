"""asyncio in a thread, for those who have another loop or none."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote._util import driver_loop
from aiorwlock_remote._util.driver_loop import (
    BackgroundLoop,
    OtherThreadLoop,
    SameLoop,
    ThreadLoop,
    begin_task,
    driver_loop_for,
    submit_and_wait,
)
from aiorwlock_remote.ports import CallbackThread
from aiorwlock_remote.runtime.event_loop import SystemClock, current_event_loop
from tests.refused_threads import RefusedThreads

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("asyncio does it")]


async def where() -> threading.Thread:
    """The thread of the asyncio loop it runs in."""
    asyncio.get_running_loop()
    return threading.current_thread()


async def fails() -> None:
    raise LookupError("there")


async def test_the_callers_own_loop_or_one_in_a_thread() -> None:
    side = driver_loop_for(current_event_loop(), "test")
    there = await submit_and_wait(side, where)
    here = threading.current_thread()
    assert isinstance(side, SameLoop) == (there is here)
    with pytest.raises(LookupError, match="there"):
        await submit_and_wait(side, fails)
    await side.stop()
    await side.stop()
    assert there is here or not there.is_alive()


async def test_coroutines_in_the_thread_end_with_it() -> None:
    far = ThreadLoop(current_event_loop(), "test")
    begun, ended = anyio.Event(), threading.Event()

    async def lasts() -> None:
        far.tell(begun.set)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    far.spawn(lasts)
    await begun.wait()
    await far.stop()
    assert ended.is_set()
    far.spawn(lasts)  # nobody is left who does it


async def test_a_caller_that_is_cancelled_leaves_it_alone() -> None:
    far = ThreadLoop(current_event_loop(), "test")
    begun, done = anyio.Event(), threading.Event()

    async def lasts() -> None:
        far.tell(begun.set)
        await asyncio.sleep(0.05)
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(submit_and_wait, far, lasts)
        await begun.wait()
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(done.wait, 5)
    await far.stop()


async def test_a_thread_asks_the_loop() -> None:
    """As the keeper does, over a user's pool."""
    host = current_event_loop()
    thread = CallbackThread(SystemClock())
    across = OtherThreadLoop(host, thread)
    reported: list[threading.Thread] = []

    async def run() -> None:
        across.tell(reported.append, threading.current_thread())

    def ask() -> None:
        across.spawn(run)
        thread.run(lambda: bool(reported), thread.clock.now() + 5)

    await anyio.to_thread.run_sync(ask)
    assert reported == [threading.current_thread()]
    await across.stop()


async def test_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that was to run there is closed."""
    RefusedThreads(monkeypatch, "test")
    with pytest.raises(BackendUnavailable, match="no thread could be started"):
        ThreadLoop(current_event_loop(), "test")
    gc.collect()


async def test_the_last_thing_is_done_there() -> None:
    far = ThreadLoop(current_event_loop(), "test")
    ran: list[str] = []
    last: Callable[[], None] = lambda: ran.append(threading.current_thread().name)  # noqa: E731
    await anyio.to_thread.run_sync(far.end, last)
    assert ran == ["aiorwlock_remote test"]


async def test_running_coroutines_may_end_or_are_cancelled() -> None:
    far = ThreadLoop(current_event_loop(), "test")
    begun, reported = threading.Event(), list[str]()

    async def ends() -> None:
        await asyncio.sleep(0.1)
        reported.append("ended")

    async def lasts() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            reported.append("cancelled")
            raise

    far.spawn(ends)
    far.spawn(lasts)
    assert await anyio.to_thread.run_sync(begun.wait, 5)
    await anyio.to_thread.run_sync(far.end, lambda: reported.append("last"))
    assert reported == ["ended", "cancelled", "last"]


async def test_no_connection_outlives_its_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even one that nobody has: its task was cancelled while it logged in."""
    monkeypatch.setattr(driver_loop, "CANCEL_GRACE", 0.0)
    far = ThreadLoop(current_event_loop(), "test")
    begun = anyio.Event()
    opened: list[asyncio.BaseTransport] = []

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def logs_in() -> None:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(
                asyncio.Protocol, "127.0.0.1", port
            )
            opened.append(transport)
            far.tell(begun.set)
            await asyncio.sleep(60)

        far.spawn(logs_in)
        await begun.wait()
        await far.stop()
    assert opened[0].get_extra_info("socket").fileno() == -1


@pytest.mark.only_on("asyncio", "there the caller's loop is the driver's")
async def test_a_coroutine_in_the_same_loop_runs_to_its_first_await_at_once() -> None:
    """And goes on in a task of its own."""
    near, asked, ended = (
        SameLoop(current_event_loop()),
        asyncio.Event(),
        asyncio.Event(),
    )
    tasks: list[object] = []

    async def work() -> None:
        tasks.append("begun")
        await asked.wait()
        tasks.append(asyncio.current_task())
        ended.set()

    near.begin(work)
    assert tasks == ["begun"]
    asked.set()
    await ended.wait()
    assert tasks[1] not in (None, asyncio.current_task())


@pytest.mark.only_on("asyncio", "there the caller's loop is the driver's")
async def test_a_coroutine_that_ends_in_its_first_step_has_no_task() -> None:
    near, tasks = SameLoop(current_event_loop()), asyncio.all_tasks()
    done: list[str] = []

    async def work() -> None:
        done.append("done")

    near.begin(work)
    assert done == ["done"]
    assert asyncio.all_tasks() == tasks


async def test_wake_calls_the_function_in_the_loop() -> None:
    """Each wake-up is followed by a call; a full socket loses none."""
    called, names, may_run = threading.Event(), set[str](), threading.Event()

    def on_wake() -> None:
        names.add(threading.current_thread().name)
        called.set()

    there = BackgroundLoop("test", on_wake)
    for _ in range(3):
        called.clear()
        there.wake()
        assert await anyio.to_thread.run_sync(called.wait, 5)
    there.call_soon(may_run.wait, 30)
    for _ in range(100_000):
        there.wake()
    called.clear()
    there.wake()
    may_run.set()
    assert await anyio.to_thread.run_sync(called.wait, 5)
    assert names == {"aiorwlock_remote test"}
    await anyio.to_thread.run_sync(there.end)
    called.clear()
    there.wake()  # nobody is left who is woken
    assert not called.is_set()


Steps = Callable[[list[str]], Coroutine[Any, Any, None]]
_value: ContextVar[str] = ContextVar("value", default="")


async def _waits(came: list[str]) -> None:
    task = asyncio.current_task()
    _value.set("mine")
    with anyio.CancelScope():
        came.append("begun")
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            came.append("cancelled")
            raise
    assert asyncio.current_task() is task
    assert _value.get() == "mine"
    came.append("ended")


async def _never_waits(came: list[str]) -> None:
    assert asyncio.current_task() is not None
    came.append("ended")


@pytest.mark.only_on("asyncio", "it makes tasks of asyncio")
@pytest.mark.parametrize(
    ("steps", "at_once", "at_last"),
    [
        (_waits, ["begun"], ["begun", "ended"]),
        (_never_waits, ["ended"], ["ended"]),
    ],
)
async def test_a_begun_task_has_run_up_to_its_first_await(
    steps: Steps, at_once: list[str], at_last: list[str]
) -> None:
    came, seen, tasks = list[str](), list[list[str]](), list[asyncio.Task[None]]()

    def begin() -> None:
        tasks.append(begin_task(steps(came)))
        seen.append(list(came))
        assert asyncio.current_task() is None
        assert not _value.get()

    asyncio.get_running_loop().call_soon(begin)
    await asyncio.sleep(0)
    assert seen == [at_once]
    await tasks[0]
    assert came == at_last


@pytest.mark.only_on("asyncio", "it makes tasks of asyncio")
async def test_a_begun_task_is_cancelled_behind_its_first_step() -> None:
    waits, ends, tasks = list[str](), list[str](), list[asyncio.Task[None]]()

    def begin() -> None:
        for steps, came in ((_waits, waits), (_never_waits, ends)):
            tasks.append(begin_task(steps(came)))
            tasks[-1].cancel()

    asyncio.get_running_loop().call_soon(begin)
    await asyncio.sleep(0)
    await asyncio.wait(tasks)
    assert tasks[0].cancelled()
    assert waits == ["begun", "cancelled"]
    assert ends == ["ended"]


@pytest.mark.only_on("asyncio", "there the caller's loop is the driver's")
@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_started_coroutine_learns_of_the_end_of_the_loop(turns: int) -> None:
    """Which cancels its task, perhaps before that has had a turn."""
    near, before = SameLoop(current_event_loop()), asyncio.all_tasks()
    came: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            came.append("cancelled")
            await asyncio.sleep(0)
            raise
        finally:
            came.append("over")

    near.begin(work)
    (task,) = asyncio.all_tasks() - before
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert came == ["cancelled", "over"]


async def test_elsewhere_it_begins_when_its_loop_gets_to_it() -> None:
    far, begun = ThreadLoop(current_event_loop(), "test"), threading.Event()

    async def work() -> None:
        assert threading.current_thread().name == "aiorwlock_remote test"
        begun.set()

    far.begin(work)
    assert await anyio.to_thread.run_sync(begun.wait, 5)
    await far.stop()


async def test_a_thread_begins_it_in_the_loop() -> None:
    thread = CallbackThread(SystemClock())
    begun, home = threading.Event(), threading.current_thread()
    across = OtherThreadLoop(current_event_loop(), thread)

    async def work() -> None:
        assert threading.current_thread() is home
        begun.set()

    await anyio.to_thread.run_sync(across.begin, work)
    assert await anyio.to_thread.run_sync(begun.wait, 5)
