"""Stores in files whose threads cannot be started: an error, and tried again."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, Locks, Unsupported, connect
from tests.refused_threads import RefusedThreads

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("threads are the same there"),
]

PATIENCE = 60.0


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"sqlite": f"sqlite:///{tmp_path}/locks.db", "file": f"file://{tmp_path}"}
    return urls[request.param]


async def test_without_a_worker_thread_connecting_fails(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RefusedThreads(monkeypatch, "")
    with pytest.raises(BackendUnavailable, match="no thread could be started"):
        await connect(url)
    assert not refused.left
    async with connect(url) as locks, locks.mutex("order", 1):
        pass


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", ["redis://localhost:1/0", ""])
async def test_a_sub_interpreter(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allows no threads, neither ours nor the loop's: asking again is in vain."""
    said = "thread is not supported for isolated subinterpreters"
    with monkeypatch.context() as patch, pytest.raises(Unsupported) as caught:
        RefusedThreads(patch, "", 99, said)
        await connect(name or url)
    message = str(caught.value)
    assert f"this sub-interpreter cannot start threads ({said})" in message
    assert "connect() in the main interpreter" in message
    assert "ulimit" not in message


async def test_without_a_watcher_thread_waiters_poll(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waiter polls; with the second there is one."""
    RefusedThreads(monkeypatch, "watcher")
    async with connect(url) as locks, connect(url) as others:
        await wait_in_turn(locks, others)
        assert not watchers()
        await wait_in_turn(locks, others)
        assert watchers()


async def wait_in_turn(locks: Locks, others: Locks) -> None:
    lock = locks.mutex("order", 1)
    async with anyio.create_task_group() as tasks, lock:
        tasks.start_soon(take, others)
        with anyio.fail_after(PATIENCE):
            while not (await lock.info()).queue:  # noqa: ASYNC110 - no event to be had
                await anyio.sleep(0.01)


async def take(locks: Locks) -> None:
    async with locks.mutex("order", 1).acquire(PATIENCE):
        pass


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "watcher" in thread.name]
