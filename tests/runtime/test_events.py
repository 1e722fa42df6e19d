"""DEBUG events: each moment that makes a waiter late is in the log, and no ticket."""

from __future__ import annotations

import logging

import anyio
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.core.commands import Command, Release
from aiorwlock_remote.testing.faults import Fate, FaultyLink

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="aiorwlock_remote")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.msg).split()[0] for record in caplog.records]


async def test_what_a_waiter_passes_through(
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


async def test_a_waiter_that_is_woken_by_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        connect("memory://events") as one,
        connect("memory://events") as other,
        anyio.create_task_group() as tasks,
        other.mutex("order", 1),
    ):

        async def wait() -> None:
            async with one.mutex("order", 1):
                pass

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
    woken = [r for r in caplog.records if str(r.msg).startswith("woken")]
    assert [getattr(record, "cause", None) for record in woken] == ["message"]
    assert one.statistics().wakeups == {"message": 1, "timer": 0, "poll": 0}


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
