"""DEBUG events: each moment that makes a waiter late is in the log, and no ticket."""

from __future__ import annotations

import logging
import time

import anyio
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.core.commands import Acquire, Command, Release
from aiorwlock_remote.runtime import store_client
from aiorwlock_remote.testing.faults import Fate, FaultyLink

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="aiorwlock_remote")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.msg).split()[0] for record in caplog.records]


async def test_the_events_of_a_waiter(
    locks: Locks, near: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    tickets: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            async with locks.mutex("order", 1) as held:
                tickets.append(held._lease.ticket)

        async with near.mutex("order", 1) as held:
            tickets.append(held._lease.ticket)
            tasks.start_soon(wait)
            with anyio.fail_after(20):
                while "refused" not in events(caplog):  # noqa: ASYNC110 - by a poll
                    await anyio.sleep(0.01)
    found = events(caplog)
    for event in ("request_sent", "queued", "woken", "refused", "granted"):
        assert event in found, event
    assert "poll" in {getattr(record, "cause", None) for record in caplog.records}
    granted = [r for r in caplog.records if str(r.msg).startswith("granted")]
    assert {getattr(record, "resource", "") for record in granted} == {"order/1"}
    assert all(len(getattr(record, "holder", "")) == 12 for record in granted)
    assert not any(ticket in caplog.text for ticket in tickets)


@pytest.mark.parametrize("cause", ["message", "pushed"])
async def test_a_waiter_that_is_woken_by_the_store(
    caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    async with (
        connect("memory://events") as one,
        connect("memory://events") as other,
        anyio.create_task_group() as tasks,
        other.mutex("order", 1),
    ):

        async def wait() -> None:
            # A grant without end is never pushed.
            lease = None if cause == "message" else 30.0
            async with one.mutex("order", 1, lease=lease):
                pass

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
    woken = [r for r in caplog.records if str(r.msg).startswith("woken")]
    assert [getattr(record, "cause", None) for record in woken] == [cause]
    others = dict.fromkeys(("message", "pushed", "timer", "poll"), 0)
    assert one.statistics().wakeups == {**others, cause: 1}
    assert ("push_confirmed" in events(caplog)) == (cause == "pushed")


async def test_a_wait_that_is_cancelled(
    locks: Locks, near: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    async with near.mutex("order", 1):
        with anyio.move_on_after(0.02):
            await locks.mutex("order", 1).acquire()
    assert "withdrawn" in events(caplog)


async def test_renewals(
    locks: Locks, link: FaultyLink, caplog: pytest.LogCaptureFixture
) -> None:
    async with locks.mutex("order", 1, lease=0.6):
        with anyio.fail_after(20):
            while "renewed" not in events(caplog):  # noqa: ASYNC110 - in a thread
                await anyio.sleep(0.02)
    del link


async def test_a_release_that_is_repeated(
    locks: Locks, link: FaultyLink, caplog: pytest.LogCaptureFixture
) -> None:
    def fate(command: Command) -> Fate:
        repeated = "cleanup_retried" in events(caplog)
        lost = isinstance(command, Release) and not repeated
        return Fate.DECLINE if lost else Fate.PASS

    held = await locks.mutex("order", 1).acquire()
    link.fate = fate
    assert await held.release()
    assert "cleanup_retried" in events(caplog)


async def test_a_claim_that_comes_too_late(
    locks: Locks, near: Locks, link: FaultyLink, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop is blocked for longer than the claim window (50 ms) after a wake-up."""

    def blocks(command: Command) -> Fate:
        if isinstance(command, Acquire):
            time.sleep(0.06)
        return Fate.PASS

    async def wait() -> None:
        async with locks.mutex("order", 1):
            pass

    async with near.mutex("order", 1), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        link.fate = blocks
        with anyio.fail_after(20):
            while "claim_missed" not in events(caplog):  # noqa: ASYNC110 - by a poll
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    missed = [r for r in caplog.records if str(r.msg).startswith("claim_missed")]
    assert all(getattr(record, "seconds", 0) > 0.05 for record in missed)
    assert {getattr(record, "resource", "") for record in missed} == {"order/1"}


async def test_an_acquire_that_waits_for_its_turn_to_be_sent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "INITIAL_WINDOW", 0)
    async with (
        connect("memory://") as locks,
        locks.mutex("order", 1).acquire(timeout=0.01),
    ):
        pass  # sent at last: its time was over
    (held_back,) = [r for r in caplog.records if str(r.msg).startswith("throttled")]
    assert getattr(held_back, "window", None) == 0
    assert getattr(held_back, "waiting", None) == 0
