"""Metrics: what is counted while tasks wait for locks, hold them and lose them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from aiorwlock_remote import LockLost, Locks, connect
from aiorwlock_remote.integrations.prometheus import PrometheusObserver
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


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_other_names(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)
    PrometheusObserver(registry, prefix="shop_locks")
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)
