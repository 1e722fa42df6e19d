"""Base class of all conformance cases, and the fixtures that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from aiorwlock_remote import Locks
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.harness import Harness, StoreUnderTest

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


def in_time(case: Case) -> Case:
    """Return the test case with a time limit of twice ``Harness.patience`` seconds."""

    @wraps(case)
    async def bounded(self: Cases, **fixtures: object) -> None:
        with anyio.fail_after(2 * self.harness.patience):
            await case(self, **fixtures)

    return bounded


class Cases:
    """Base of the conformance cases of one subject, for the backend of ``harness``.

    ``needs``: capabilities without which the cases do not apply. ``foreign``: True if
    the cases need a program that uses the published mutex record.
    """

    def __init_subclass__(cls) -> None:
        for name, case in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, in_time(case))

    harness: ClassVar[Harness]
    needs: ClassVar[Capability] = Capability.NONE
    foreign: ClassVar[bool] = False
    pytestmark: ClassVar[Any] = pytest.mark.anyio

    @classmethod
    def applies_to(cls, harness: Harness) -> bool:
        """Return True if the harness has all that these cases need."""
        able = cls.needs & harness.capabilities == cls.needs
        return able and (harness.has_foreigner or not cls.foreign)

    @pytest.fixture
    def renewed_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        renew_often(monkeypatch)

    @pytest.fixture
    def loop(self, anyio_backend: str | Loop) -> Loop:
        """Library and options of the event loop, as ``anyio.run`` takes them."""
        return (anyio_backend, {}) if isinstance(anyio_backend, str) else anyio_backend

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return StoreUnderTest(self.harness.fresh(tmp_path), self.harness.patience)

    @pytest.fixture
    async def locks(self, store: StoreUnderTest) -> AsyncIterator[Locks]:
        """``Locks`` connected to the store; for the cases, the process under test."""
        async with store.connect() as locks:
            yield locks

    @pytest.fixture
    async def others(self, store: StoreUnderTest) -> AsyncIterator[Locks]:
        """Second ``Locks`` connected to the store; for the cases, another process."""
        async with store.connect() as others:
            yield others
