"""What a row lock writes to the log at DEBUG: why a waiter was late, or a lock lost."""

from __future__ import annotations

import logging

import anyio
import pytest

from aiorwlock_remote import LockLost, connect
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.locks.test_observers import Recorder
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import PATIENCE, never_look_again

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no socket has a part in it"),
]

LOGGERS = ("aiorwlock_remote.row_lock", "aiorwlock_remote.acquire")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text.partition(" ")[0] for text in caplog.messages]


async def test_a_waiter(
    sqlite: LocksSite,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_look_again(monkeypatch)
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, name)
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        held = await lock.write()
        assert events(caplog) == ["request_sent", "granted"]
        caplog.clear()

        async def wait() -> None:
            async with lock.write(timeout=PATIENCE):
                pass

        async def is_waiting() -> bool:
            return events(caplog).count("refused") == 2

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await wait_until(is_waiting, PATIENCE)
            figures = locks.statistics()
            assert (figures.waiting["write"], figures.held["write"]) == (1, 1)
            await held.release()
        assert locks.statistics().wakeups["message"] == 1
    seen = events(caplog)
    assert seen[:3] == ["request_sent", "refused", "queued"]
    assert seen[-1] == "granted"
    assert any("cause=message" in text for text in caplog.messages)


async def test_observers_are_called(sqlite: LocksSite) -> None:
    recorder = Recorder()
    async with connect(sqlite.url, observers=[recorder]) as locks:
        async with locks.row_lock("invoices", 1, lease=30).write():
            asked, obtained = recorder.so_far()
            assert asked == ("asked", "invoices/1", "write")
            assert obtained == ("obtained", 0, "invoices/1")
        assert recorder.so_far() == [("ended", 0, "released")]


async def test_a_loss(sqlite: LocksSite, caplog: pytest.LogCaptureFixture) -> None:
    """The holder's ticket is a secret, and not logged."""
    caplog.set_level(logging.DEBUG, "aiorwlock_remote")

    async def is_logged() -> bool:
        return "lost" in events(caplog)

    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        held = await lock.write()
        (grant,) = await lock.grants()
        sqlite.plain.step("WUnlock")
        with pytest.raises(LockLost):
            await held.extend()
        await wait_until(is_logged, PATIENCE)
    (lost,) = (text for text in caplog.messages if text.startswith("lost "))
    assert f"resource=invoices/1 why=forced fence={grant.fence}" in lost
    assert not any(grant.ticket in text for text in caplog.messages)
