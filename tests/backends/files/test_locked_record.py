"""One record whose ``flock`` another process keeps stops no other lock."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, Locks, connect
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.embedded import worker
from aiorwlock_remote.embedded.connection import KeptLocked
from aiorwlock_remote.embedded.store import ConnectionRenewer
from aiorwlock_remote.ports import Renewal
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.files.one_resource import LEASE, ResourceClient

CYCLES = 100
HANGS = 60.0
"""Seconds after which the test itself is given up; nothing is measured by them."""


@contextmanager
def kept_locked(record: Path) -> Iterator[None]:
    """As ``flock order,1.doorman sleep 1d`` in a shell."""
    with record.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def want(locks: Locks, entered: anyio.Event) -> None:
    """Ask for the lock again and again, however often the request fails."""
    while not entered.is_set():
        try:
            async with locks.mutex("order", 1):
                entered.set()
        except BackendUnavailable:  # it was kept locked for all of its time
            continue


@pytest.mark.slow
@pytest.mark.anyio
async def test_unrelated_locks_go_on(tmp_path: Path) -> None:
    """Those of the same process, by its worker, its watcher and its keeper."""
    async with connect(tmp_path.as_uri()) as locks, connect(tmp_path.as_uri()) as other:
        async with locks.mutex("order", 1):
            pass
        entered = anyio.Event()
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(HANGS), kept_locked(tmp_path / "order,1.doorman"):
                for _ in range(3):
                    tasks.start_soon(want, locks, entered)
                await anyio.wait_all_tasks_blocked()
                # A holder that changes each time makes the watcher look, too.
                for number in range(CYCLES):
                    taker = locks if number % 2 else other
                    async with taker.mutex("order", 2):
                        pass
                assert (await locks.mutex("order", 2).info()).holders == ()
                assert [info async for info in locks.list()] == []
                assert not entered.is_set()
        assert entered.is_set()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_request_is_bounded_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BUSY_TIMEOUT", 0.05)
    record = tmp_path / "order,1.doorman"
    async with connect(tmp_path.as_uri()) as locks:
        async with locks.mutex("order", 1):
            pass
        with kept_locked(record), pytest.raises(BackendUnavailable) as caught:
            await locks.mutex("order", 1).try_acquire()
        assert caught.value.nothing_done
        assert str(record) in str(caught.value)
        async with locks.mutex("order", 1):
            pass


@pytest.mark.anyio
async def test_a_withdrawal_does_not_overtake_its_acquire(tmp_path: Path) -> None:
    """Both are put back, and tried again in their order."""
    async with connect(tmp_path.as_uri()) as locks:
        async with locks.mutex("order", 1):
            pass
        with kept_locked(tmp_path / "order,1.doorman"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(want, locks, anyio.Event())
                await anyio.wait_all_tasks_blocked()
                async with locks.mutex("order", 2):
                    tasks.cancel_scope.cancel()
        assert not await locks.mutex("order", 1).locked()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_step_that_hangs_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can tell what stands there; all others are seen, and woken."""
    monkeypatch.setattr(worker, "BUSY_TIMEOUT", 0.05)
    record = tmp_path / "order,1.doorman"
    ResourceClient(tmp_path).take("hangs", of=resource("order", 1))
    (tmp_path / "order,1.lock").unlink()  # the record says that there is a seat
    entered = anyio.Event()
    async with connect(tmp_path.as_uri()) as locks, connect(tmp_path.as_uri()) as other:
        with kept_locked(record):
            with pytest.raises(BackendUnavailable) as caught:
                await other.mutex("order", 1).info()
            assert str(record) in str(caught.value)
            store = other._session.client.store
            store.watch(resource("order", 1))
            async with anyio.create_task_group() as tasks:
                async with locks.mutex("order", 2):
                    tasks.start_soon(take, other, entered)
                    await wait_until(partial(queued, locks), 30)
                    assert [seen.resource_id async for seen in locks.list()] == ["2"]
                    assert "record_kept_locked" in caplog.text
                await entered.wait()


async def take(locks: Locks, entered: anyio.Event) -> None:
    async with locks.mutex("order", 2):
        entered.set()


async def queued(locks: Locks) -> bool:
    return bool((await locks.mutex("order", 2).info()).queue)


def test_renewals_of_a_batch_do_not_wait_for_one(tmp_path: Path) -> None:
    """No renewal is known before the whole batch is answered."""
    client, clock = ResourceClient(tmp_path), SystemClock()
    orders = [resource("order", number) for number in range(3)]
    for order in orders:
        client.take("ours", of=order)
    renewer = ConnectionRenewer(client.connection, clock)
    batch = [Renewal(order, "ours", LEASE) for order in orders]
    with kept_locked(tmp_path / "order,0.doorman"):
        kept, *others = renewer.renew(batch, 60.0)
    assert isinstance(kept, KeptLocked)
    assert all(isinstance(other, Grant) for other in others)
    assert all(isinstance(outcome, Grant) for outcome in renewer.renew(batch, 60.0))


def test_a_momentary_lock_costs_no_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ResourceClient(tmp_path)
    order = resource("order", 0)
    client.take("ours", of=order)
    renewer = ConnectionRenewer(client.connection, SystemClock())
    with ExitStack() as kept:
        kept.enter_context(kept_locked(tmp_path / "order,0.doorman"))
        monkeypatch.setattr(time, "sleep", lambda _: kept.close())
        (outcome,) = renewer.renew([Renewal(order, "ours", LEASE)], 60.0)
    assert isinstance(outcome, Grant)
