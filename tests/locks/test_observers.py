"""Observers: called for each attempt, and for its outcome; never in the way."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from aiorwlock_remote import (
    Attempt,
    Closed,
    ConfigurationError,
    GrantEnd,
    LockLost,
    Locks,
    LockTimeout,
    Observer,
    RenewalOutcome,
    WakeCause,
    WouldDeadlock,
    connect,
)

pytestmark = pytest.mark.anyio

Event = tuple[object, ...]


class Recorder:
    """Records the events, as one list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def asked(self, attempt: Attempt) -> _Following:
        number = sum(kind == "asked" for kind, *_ in self.events)
        self.events.append(("asked", attempt.resource, attempt.mode))
        return _Following(self.events, number)

    def so_far(self) -> list[Event]:
        events, self.events[:] = list(self.events), []
        return events


class _Following:
    def __init__(self, events: list[Event], number: int) -> None:
        self._events, self._number = events, number

    def obtained(self, resource: str, fence: int) -> None:
        assert fence > 0
        self._events.append(("obtained", self._number, resource))

    def failed(self, error: BaseException | None) -> None:
        kind = None if error is None else type(error)
        self._events.append(("failed", self._number, kind))

    def ended(self, how: GrantEnd) -> None:
        self._events.append(("ended", self._number, how))


ASKED = "asked", "order/1", "write"
OBTAINED = "obtained", 0, "order/1"
RELEASED = "ended", 0, "released"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


@pytest.fixture
async def locks(recorder: Recorder, url: str) -> AsyncIterator[Locks]:
    async with connect(url, observers=[recorder]) as locks:
        yield locks


async def test_a_block(locks: Locks, recorder: Recorder) -> None:
    async with locks.mutex("order", 1):
        assert recorder.so_far() == [ASKED, OBTAINED]
    assert recorder.so_far() == [RELEASED]


async def test_by_hand(locks: Locks, recorder: Recorder) -> None:
    held = await locks.mutex("order", 1).try_acquire()
    assert held is not None
    await held.release()
    await held.release()
    assert recorder.so_far() == [ASKED, OBTAINED, RELEASED]


async def test_an_attempt_without_a_grant(locks: Locks, recorder: Recorder) -> None:
    mutex = locks.mutex("order", 1)
    scope = anyio.CancelScope()

    async def wait() -> None:
        with scope:
            await mutex.acquire()

    async with anyio.create_task_group() as tasks:
        await tasks.start(hold, mutex)
        recorder.so_far()
        assert await mutex.try_acquire() is None
        with pytest.raises(LockTimeout):
            await mutex.acquire(timeout=0.01)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        events = recorder.so_far()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        events += recorder.so_far()
        tasks.cancel_scope.cancel()
    cancelled = anyio.get_cancelled_exc_class()
    assert events == [
        *(ASKED, ("failed", 0, None)),
        *(ASKED, ("failed", 1, LockTimeout)),
        *(ASKED, ("failed", 2, cancelled)),
    ]


async def test_no_wait_for_oneself(locks: Locks, recorder: Recorder) -> None:
    async with locks.mutex("order", 1):
        recorder.so_far()
        with pytest.raises(WouldDeadlock):
            await locks.mutex("order", 1).acquire()
        assert recorder.so_far() == [ASKED, ("failed", 0, WouldDeadlock)]


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("inside", [True, False])
async def test_a_loss(locks: Locks, recorder: Recorder, *, inside: bool) -> None:
    """Found by the keeper, or when it is released."""
    mutex = locks.mutex("order", 1)
    with pytest.raises(LockLost, match="forced"):
        async with mutex:
            await locks.force_release(await mutex.info(), reason="test")
            if inside:
                await anyio.sleep_forever()
    assert recorder.so_far() == [ASKED, OBTAINED, ("ended", 0, "forced")]


async def test_observers_of_conversions(locks: Locks, recorder: Recorder) -> None:
    rw = locks.rwlock("order", 1)
    async with rw.writer as held:
        reader = await held.downgrade()
        assert await reader.try_upgrade() is not None
    read = "asked", "order/1", "read"
    assert recorder.so_far() == [
        *(ASKED, OBTAINED),
        *(read, ("ended", 0, "moved"), ("obtained", 1, "order/1")),
        *(ASKED, ("ended", 1, "moved"), ("obtained", 2, "order/1")),
        ("ended", 2, "released"),
    ]


async def test_a_move_that_cannot_be(locks: Locks, recorder: Recorder) -> None:
    rw = locks.rwlock("order", 1)
    async with anyio.create_task_group() as tasks:
        await tasks.start(hold, rw.reader)
        async with rw.reader as held:
            recorder.so_far()
            assert await held.try_upgrade() is None
            assert recorder.so_far() == [ASKED, ("failed", 0, None)]
        tasks.cancel_scope.cancel()


async def test_observers_of_adoptions(locks: Locks, recorder: Recorder) -> None:
    held = await locks.mutex("order", 1).acquire()
    adopted = await locks.adopt(held.detach())
    assert recorder.so_far() == [
        *(ASKED, OBTAINED, ("ended", 0, "detached")),
        *(ASKED, ("obtained", 1, "order/1")),
    ]
    await adopted.release()


@pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")
async def test_observers_of_a_dropped_lock(locks: Locks, recorder: Recorder) -> None:
    await locks.mutex("order", 1).acquire()
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert recorder.so_far() == [ASKED, OBTAINED, ("ended", 0, "dropped")]


async def test_observers_of_a_closed_locks(recorder: Recorder, url: str) -> None:
    locks = await connect(url, observers=[recorder])
    mutex = locks.mutex("order", 1)

    async def wait() -> None:
        with pytest.raises(Closed):
            await mutex.acquire()

    held = await mutex.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await locks.aclose()
    assert set(recorder.so_far()[2:]) == {ASKED, RELEASED, ("failed", 1, Closed)}
    del held


async def test_several_in_order(recorder: Recorder, url: str) -> None:
    async with (
        connect(url, observers=[recorder, recorder]) as locks,
        locks.multi(locks.mutex("order", 1), locks.mutex("order", 2)),
    ):
        pass
    kinds = [kind for kind, *_ in recorder.so_far()]
    assert kinds == [*["asked"] * 2, *["obtained"] * 2] * 2 + ["ended"] * 4


class Broken:
    """Fails always, or as soon as there is something to follow."""

    def __init__(self, *, follows: bool) -> None:
        self.follows = follows

    def asked(self, attempt: Attempt) -> Any:  # noqa: ANN401 - what it must not be
        if not self.follows:
            raise ZeroDivisionError(attempt.resource)
        return object()


@pytest.mark.parametrize("follows", [True, False])
async def test_one_that_fails_is_not_in_the_way(
    recorder: Recorder, url: str, caplog: pytest.LogCaptureFixture, *, follows: bool
) -> None:
    observers: list[Observer] = [Broken(follows=follows), recorder]
    caplog.set_level(logging.ERROR, "aiorwlock_remote.observers")
    async with (
        connect(url, observers=observers) as locks,
        locks.mutex("order", 1),
    ):
        pass
    assert recorder.so_far() == [ASKED, OBTAINED, RELEASED]
    assert "observer_failed" in caplog.text


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_an_object_that_is_no_observer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not an observer"):
        _ = connect("memory://", observers=[object()])  # type: ignore[list-item]
    for alone in (Recorder(), None, 1):
        with pytest.raises(ConfigurationError, match="is not a sequence"):
            _ = connect("memory://", observers=alone)  # type: ignore[arg-type]


async def hold(lock: Any, *, task_status: anyio.abc.TaskStatus[None]) -> None:  # noqa: ANN401
    async with lock:
        task_status.started()
        await anyio.sleep_forever()


class Requests(Recorder):
    """An observer of the requests to the store, too."""

    def __init__(self, *, raises: bool = False) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.raises = raises

    def replied(
        self, command: str, seconds: float, error: BaseException | None
    ) -> None:
        assert seconds >= 0
        assert error is None
        self.requests.append(command)
        if self.raises:
            raise SystemExit

    def renewed(
        self, outcome: RenewalOutcome, grants: int, error: BaseException | None
    ) -> None:
        self.requests.append(f"{grants} {outcome} {error}")

    def woken(self, cause: WakeCause) -> None:
        self.requests.append(cause)


async def test_requests_to_the_store(url: str) -> None:
    requests = Requests()
    async with connect(url, observers=[Recorder(), requests]) as locks:
        async with locks.mutex("order", 1, lease=0.6):
            assert requests.requests == ["Acquire"]
            with anyio.fail_after(20):
                while len(requests.requests) == 1:  # noqa: ASYNC110 - a thread
                    await anyio.sleep(0.02)
        assert requests.requests[1] == "1 renewed None"
        assert requests.requests[-1] == "Release"


async def test_wake_ups(url: str) -> None:
    requests = Requests()
    async with connect(url) as others, connect(url, observers=[requests]) as locks:

        async def wait() -> None:
            async with locks.mutex("order", 1):
                pass

        held = await others.mutex("order", 1).acquire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await held.release()
        woken = set(requests.requests) & set(get_args(WakeCause))
        counted = locks.statistics().wakeups
        assert woken == {cause for cause, count in counted.items() if count}
        assert woken


async def test_one_that_raises_is_in_nobodys_way(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(raises=True)
    async with connect(url, observers=[requests]) as locks, locks.mutex("order", 1):
        pass
    assert requests.requests == ["Acquire", "Release"]
    failed = [r for r in caplog.records if r.name == "aiorwlock_remote.observers"]
    assert [record.levelno for record in failed] == [logging.ERROR] * 2
