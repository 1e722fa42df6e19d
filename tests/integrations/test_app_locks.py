"""Applications whose store is down when they start, and their health endpoint."""

from __future__ import annotations

import asyncio
import logging

import anyio
import pytest
from anyio import to_thread

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
    connect,
    sync,
)
from aiorwlock_remote.integrations import _app_locks
from aiorwlock_remote.integrations._app_locks import AppLocks
from aiorwlock_remote.integrations._sync_app import SyncAppLocks
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback
from aiorwlock_remote.testing.faults import FaultyStore
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.guests import until

pytestmark = pytest.mark.asyncio


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().partition(" ")[0]
        for record in caplog.records
        if record.name in ("aiorwlock_remote.http", "aiorwlock_remote.store")
        and record.getMessage().startswith("store")
    ]


class Scripted:
    """A backend whose attempts to open fail with these errors, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = [*errors]
        self.opening = asyncio.Event()
        self.attempts = 0
        self.memory = FaultyMemory()

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return await self.memory.open(loop, wake, settings)


class Silent(Scripted):
    """A backend that never answers, after these errors."""

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        if self.errors:
            return await super().open(loop, wake, settings)
        self.opening.set()
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("error", [Unsupported(what="too old"), ConfigurationError()])
async def test_an_error_that_no_retry_mends_ends_the_start(error: Exception) -> None:
    app_locks = AppLocks(connect(Scripted(error)), required=False)
    with pytest.raises(type(error)):
        async with app_locks.running():
            pytest.fail("started")


async def test_a_store_that_comes_back_unfit_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody may mend it while the application runs."""
    caplog.set_level(logging.INFO)
    unfit = [Unsupported(what="no such table") for _ in range(2)]
    down = [BackendUnavailable(what="down") for _ in range(2)]
    app_locks = AppLocks(connect(Scripted(*down, *unfit)), required=False)
    async with app_locks.running():
        assert app_locks.opened
        with pytest.raises(BackendUnavailable, match="since the application started"):
            _ = app_locks.locks

        async def connected() -> bool:
            return "store_connected" in events(caplog)

        await until(connected)
        locks = app_locks.locks
    assert events(caplog) == [
        "store_down_at_start",
        "store_still_unusable",
        "store_connected",
    ]
    assert "closed" in repr(locks)


async def test_a_bug_of_a_backend_ends_no_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Scripted(BackendUnavailable(what="down"), ZeroDivisionError())
    app_locks = AppLocks(connect(store), required=False)
    async with app_locks.running():

        async def connected() -> bool:
            return store.attempts == 3

        await until(connected)
        await app_locks.check()
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("required", [True, False])
async def test_a_start_that_is_cancelled_leaves_nothing(required: bool) -> None:
    store = Silent()
    app_locks = AppLocks(connect(store), required=required)

    async def start() -> None:
        async with app_locks.running():
            pytest.fail("started")

    before = asyncio.all_tasks()
    starting = asyncio.create_task(start())
    await store.opening.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() == before
    assert not app_locks.opened


async def test_an_end_during_an_attempt_leaves_nothing() -> None:
    store = Silent(BackendUnavailable(what="down"))
    before = asyncio.all_tasks()
    async with AppLocks(connect(store), required=False).running():
        await store.opening.wait()
    assert asyncio.all_tasks() == before


async def test_an_application_may_start_again() -> None:
    store = FaultyMemory()
    app_locks = AppLocks(connect(store), required=False)
    for down in (False, True, False):
        store.link.down = down
        async with app_locks.running():
            if down:
                with pytest.raises(BackendUnavailable):
                    await app_locks.check()
            else:
                await app_locks.check()
        store.link.down = False


async def test_after_a_close_an_outage_is_said_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyMemory()
    app_locks = SyncAppLocks(lambda: sync.connect(store))

    def asks() -> None:
        for _ in range(2):
            with pytest.raises(BackendUnavailable):
                app_locks.locks.mutex("order", 42).acquire()
        app_locks.close()

    with store.down():
        for _ in range(2):
            await to_thread.run_sync(asks)
    assert events(caplog) == ["store_down_at_start"] * 2


async def test_a_health_check_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(_app_locks, "HEALTH_TIMEOUT", 0.05)
    monkeypatch.setattr(FaultyStore, "look", never)
    app_locks = AppLocks(connect(FaultyMemory()))
    async with app_locks.running():
        with pytest.raises(BackendUnavailable, match="did not answer"):
            await app_locks.check()


async def test_only_what_connect_returns_can_be_tried_again() -> None:
    store = FaultyMemory()
    async with AppLocks(store.connect()).running():
        pass
    with pytest.raises(ConfigurationError, match=r"connect\(…\)"):
        AppLocks(store.connect(), required=False)
