"""Base class of all conformance cases, and the fixtures that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, Holder, Locks
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.actors import TaskActors
from aiorwlock_remote.testing.conformance.harness import (
    AnyLock,
    Harness,
    StoreUnderTest,
)

FAST_RENEWALS_PER_LEASE = 300


def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases of 30 seconds every 0.1 s, so that a loss is found soon."""
    monkeypatch.setattr(
        "aiorwlock_remote.runtime.lease.RENEWALS_PER_LEASE", FAST_RENEWALS_PER_LEASE
    )
    # A short lease would be another way, but on a machine that stands still for seconds
    # it would run out.
    monkeypatch.setattr(
        "aiorwlock_remote.runtime.lease_keeper.BATCHING_DIVISOR",
        10 * FAST_RENEWALS_PER_LEASE,
    )


Loop = tuple[str, dict[str, Any]]
Case = Callable[..., Coroutine[object, object, None]]


def as_test(case: Case) -> Case:
    """Return a test that runs the case with new ``self.actors``, for a limited time.

    When the case has ended, the tasks of its actors release their locks and end. The
    limit is twice ``Harness.patience``.
    """

    @wraps(case)
    async def test(self: Cases, **fixtures: object) -> None:
        failure: BaseException | None = None
        patience = self.harness.patience
        with anyio.fail_after(2 * patience):
            async with anyio.create_task_group() as group:
                self.actors = TaskActors(group, patience / 2)
                # Raised outside of the group, which would wrap the failure.
                try:
                    await case(self, **fixtures)
                except (Exception, pytest.fail.Exception) as exc:  # noqa: BLE001
                    failure = exc
                    group.cancel_scope.cancel()
                self.actors.all_may_leave()
        if failure is not None:
            raise failure

    return test


class Cases:
    """Base of the conformance cases of one subject, for the backend of ``harness``.

    Attributes:
        needs: Capabilities without which the cases do not apply.
        foreign: Whether the cases need a program that uses the published mutex record.
        store: The store of this test, which no other test uses.
        locks: ``Locks`` connected to the store; for the cases, the process under test.
        others: Second ``Locks`` of the store; for the cases, another process.
        actors: Starts tasks that acquire locks, and end with the case.
    """

    harness: ClassVar[Harness]
    needs: ClassVar[Capability] = Capability.NONE
    foreign: ClassVar[bool] = False
    pytestmark: ClassVar[Any] = pytest.mark.anyio
    store: StoreUnderTest
    locks: Locks
    others: Locks
    actors: TaskActors

    def __init_subclass__(cls) -> None:
        for name, case in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, as_test(case))

    @classmethod
    def is_whole(cls) -> bool:
        """Return True if the class has cases, and is not only a base of others."""
        return any(name.startswith("test_") for name in vars(cls))

    @classmethod
    def applies_to(cls, harness: Harness) -> bool:
        """Return True if the harness has all that these cases need."""
        able = cls.needs & harness.capabilities == cls.needs
        return able and (harness.has_foreigner or not cls.foreign)

    @pytest.fixture(autouse=True)
    async def _connected(self, tmp_path: Path) -> AsyncIterator[None]:
        async with self.connected(tmp_path):
            yield

    @asynccontextmanager
    async def connected(self, folder: Path) -> AsyncIterator[None]:
        """Context in which ``store``, ``locks`` and ``others`` are set and connected.

        ``folder``: an empty folder for the store.
        """
        self.store = StoreUnderTest(self.harness.fresh(folder), self.harness.patience)
        async with (
            self.store.connect() as self.locks,
            self.store.connect() as self.others,
        ):
            yield

    @staticmethod
    async def enter_and_leave(lock: AbstractAsyncContextManager[object]) -> None:
        """Acquire the lock, waiting for it if need be, and release it."""
        async with lock:
            pass

    @staticmethod
    async def take_at_once(lock: AnyLock) -> int:
        """Acquire the lock without waiting; release it, and return its fence."""
        held = await lock.try_acquire()
        assert held is not None
        await held.release()
        return held.fence

    @staticmethod
    def lease_left(grant: Held | Holder) -> float:
        """Return the seconds until the lease of a grant ends; it must have one."""
        assert grant.expires_in is not None
        return grant.expires_in

    @staticmethod
    async def all_raise(error: type[Exception], *calls: Callable[[], object]) -> None:
        """Call all; fail unless each raises ``error``, itself or when it is awaited."""
        for call in calls:
            with pytest.raises(error):
                result = call()
                if isinstance(result, Awaitable):
                    await result

    @staticmethod
    async def cancelled_after(
        turns: int, work: Callable[..., Coroutine[Any, Any, object]], *args: object
    ) -> None:
        """Call ``work`` in a task, and cancel the task after ``turns`` loop turns."""
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(work, *args)
                for _ in range(turns):
                    await checkpoint()
                scope.cancel()

    async def force(self, lock: AnyLock) -> None:
        """End the grant of the lock by ``force_release``, as another process."""
        shown = await lock.info()
        assert await self.others.force_release(shown, reason="test") == 1

    async def expiring(self, number: int = 1) -> Held:
        """Acquire mutex order/``number`` for ``Harness.short`` s; do not renew it."""
        lock = self.locks.mutex("order", number, lease=self.harness.short)
        held = await lock.acquire()
        held.detach()
        return held

    @pytest.fixture
    def renewed_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        renew_often(monkeypatch)

    @pytest.fixture
    def loop(self, anyio_backend: str | Loop) -> Loop:
        """Library and options of the event loop, as ``anyio.run`` takes them."""
        return (anyio_backend, {}) if isinstance(anyio_backend, str) else anyio_backend
