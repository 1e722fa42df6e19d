"""Metrics: what is counted while tasks wait for locks, hold them and lose them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from aiorwlock_remote import BackendUnavailable, LockLost, Locks, connect
from aiorwlock_remote.integrations.prometheus import (
    PrometheusObserver,
    workers_registry,
)
from tests.integrations.attempts import fail_thrice

pytestmark = pytest.mark.anyio


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def locks(registry: CollectorRegistry, tmp_path: Path) -> AsyncIterator[Locks]:
    observers = [PrometheusObserver(registry)]
    async with connect(f"memory://{tmp_path.name}", observers=observers) as locks:
        yield locks


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """0 if it was never counted."""
    every = {"type": "order", "mode": "write", **labels}
    return registry.get_sample_value(name, every) or 0


def plain(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Of a metric that is not by type and mode."""
    return registry.get_sample_value(name, labels) or 0


async def test_waiting_and_holding(registry: CollectorRegistry, locks: Locks) -> None:
    mutex = locks.mutex("order", 1)

    async def take() -> None:
        async with mutex:
            pass

    async with anyio.create_task_group() as tasks, mutex:
        assert value(registry, "rwlock_held") == 1
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        assert value(registry, "rwlock_waiting") == 1
    assert value(registry, "rwlock_held") == value(registry, "rwlock_waiting") == 0
    waits = value(registry, "rwlock_wait_seconds_count", outcome="obtained")
    holds = value(registry, "rwlock_hold_seconds_count", end="released")
    assert waits == holds == 2
    assert value(registry, "rwlock_hold_seconds_sum", end="released") > 0


async def test_outcomes(registry: CollectorRegistry, locks: Locks) -> None:
    await fail_thrice(locks.mutex("order", 1))
    for outcome in ("busy", "timeout", "cancelled"):
        assert value(registry, "rwlock_wait_seconds_count", outcome=outcome) == 1
    assert value(registry, "rwlock_waiting") == 0


async def test_a_loss(registry: CollectorRegistry, locks: Locks) -> None:
    mutex = locks.mutex("order", 1)
    with pytest.raises(LockLost):
        async with mutex:
            await locks.force_release(await mutex.info(), reason="test")
    assert value(registry, "rwlock_hold_seconds_count", end="forced") == 1
    assert value(registry, "rwlock_held") == 0
    assert value(registry, "rwlock_lost_total", reason="forced") == 1


async def test_losses_are_counted_from_0(
    registry: CollectorRegistry, locks: Locks
) -> None:
    """Prometheus sees no increase of a counter that begins with 1."""
    async with locks.mutex("order", 1):
        pass
    same = {"type": "order", "mode": "write"}
    for reason in ("expired", "stolen", "forced", "unreachable", "stalled"):
        name, labels = "rwlock_lost_total", {**same, "reason": reason}
        assert registry.get_sample_value(name, labels) == 0


async def test_the_oldest(registry: CollectorRegistry, locks: Locks) -> None:
    """Those that came later do not count, and the next one does when it has gone."""
    began = time.time()
    name = "rwlock_oldest_held_timestamp_seconds"
    first = await locks.mutex("order", 1).acquire()
    oldest = value(registry, name)
    assert began <= oldest <= time.time()
    second, third = [await locks.mutex("order", n).acquire() for n in (2, 3)]
    assert value(registry, name) == oldest
    await second.release()
    assert value(registry, name) == oldest
    await first.release()
    assert oldest < value(registry, name) <= time.time()
    await third.release()
    assert value(registry, name) == math.inf


async def test_the_longest_wait(registry: CollectorRegistry, locks: Locks) -> None:
    name = "rwlock_longest_wait_timestamp_seconds"
    mutex = locks.mutex("order", 1)

    async def wait() -> None:
        await mutex.acquire()

    async with mutex, anyio.create_task_group() as tasks:
        assert value(registry, name) == math.inf
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert 0 < time.time() - value(registry, name) < 60
        tasks.cancel_scope.cancel()
    assert value(registry, name) == math.inf


async def test_requests(registry: CollectorRegistry, locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass
    for command in ("Acquire", "Release"):
        labels = {"command": command, "outcome": "ok"}
        assert plain(registry, "rwlock_request_seconds_count", **labels) == 1


async def test_renewals(registry: CollectorRegistry, locks: Locks) -> None:
    name = "rwlock_renewals_total"
    assert registry.get_sample_value(name, {"outcome": "renewed"}) == 0

    async def counted(outcome: str) -> None:
        with anyio.fail_after(20):
            while not plain(registry, name, outcome=outcome):  # noqa: ASYNC110 - a thread
                await anyio.sleep(0.02)

    with pytest.raises(LockLost):
        async with locks.mutex("order", 1, lease=0.6) as held:
            await counted("renewed")
            held.check()
            seen = await locks.mutex("order", 1).info()
            await locks.force_release(seen, reason="test")
            await anyio.sleep_forever()
    await counted("gone")
    assert plain(registry, name, outcome="gone") == 1
    assert plain(registry, name, outcome="failed") == 0


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_a_store_that_is_away(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    away, refused = BackendUnavailable(what="away"), ValueError("refused")

    def unreachable() -> float:
        return plain(registry, "rwlock_store_unreachable")

    assert registry.get_sample_value("rwlock_store_unreachable") == 0
    observer.replied("Acquire", 0.1, away)
    assert unreachable() == 1
    observer.replied("Acquire", 0.1, refused)
    assert unreachable() == 0
    observer.renewed("failed", 3, away)
    assert unreachable() == 1
    observer.renewed("renewed", 2, None)
    assert unreachable() == 0
    observer.woken("poll")
    assert plain(registry, "rwlock_wakeups_total", cause="poll") == 1
    assert registry.get_sample_value("rwlock_wakeups_total", {"cause": "timer"}) == 0
    for outcome in ("unavailable", "error"):
        labels = {"command": "Acquire", "outcome": outcome}
        assert plain(registry, "rwlock_request_seconds_count", **labels) == 1
    assert plain(registry, "rwlock_renewals_total", outcome="failed") == 3
    assert plain(registry, "rwlock_renewals_total", outcome="renewed") == 2


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_other_names(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)
    PrometheusObserver(registry, prefix="shop_locks")
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


# ------------------------------------------------------------ several worker processes

WORKER = """
import os, sys
from contextlib import suppress
import anyio
from aiorwlock_remote import Closed, connect
from aiorwlock_remote.integrations.prometheus import PrometheusObserver

observer = PrometheusObserver()

async def main():
    async with connect("memory://", observers=[observer]) as locks:
        async with locks.mutex("order", 1):
            print(os.getpid(), flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)

FORK
anyio.run(main)
"""
FORK = """
async def once():
    with suppress(Closed):  # the child's
        async with connect("memory://", observers=[observer]) as locks:
            held = await locks.mutex("order", 1).acquire()
            if os.fork():
                os._exit(os.waitstatus_to_exitcode(os.wait()[1]))

anyio.run(once)
"""


@contextmanager
def worker(folder: Path, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that holds order/1 until a line is written to it."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER.replace("FORK", before)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.only_on("asyncio", "no loop of this process has a part in it")
async def test_locks_of_a_killed_worker_count_no_more(tmp_path: Path) -> None:
    oldest = "rwlock_oldest_held_timestamp_seconds"
    with ExitStack() as stack:
        first, second = [stack.enter_context(worker(tmp_path)) for _ in range(2)]
        seen = workers_registry(tmp_path)
        assert value(seen, "rwlock_held") == 2
        since = value(seen, oldest)
        first.send_signal(signal.SIGKILL)
        first.wait()
        seen = workers_registry(tmp_path)
        assert value(seen, "rwlock_held") == 1
        assert since < value(seen, oldest) < time.time()
        # What has happened stays counted: only what is so now ends with a process.
        obtained = value(seen, "rwlock_wait_seconds_count", outcome="obtained")
        assert obtained == 2
        second.communicate("\n")
        seen = workers_registry(tmp_path)
        assert value(seen, "rwlock_hold_seconds_count", end="released") == 1
        assert value(seen, "rwlock_held") == 0


@pytest.mark.only_on("asyncio", "no loop of this process has a part in it")
async def test_a_forked_worker_holds_nothing_of_its_parents(tmp_path: Path) -> None:
    """The parent holds order/1 when it forks, and waits for its child."""
    with worker(tmp_path, FORK) as process:
        seen = workers_registry(tmp_path)
        assert value(seen, "rwlock_held") == 2
        assert value(seen, "rwlock_oldest_held_timestamp_seconds") > 0
        process.communicate("\n")
        assert process.returncode == 0
    seen = workers_registry(tmp_path)
    assert value(seen, "rwlock_held") == 0


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_a_folder_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with pytest.raises(ValueError, match="PROMETHEUS_MULTIPROC_DIR"):
        workers_registry()
