"""The attempts of an acquire: what passes by itself is waited for, in its time."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from aiorwlock_remote import BackendError, BackendUnavailable, LockTimeout
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease, LeaseTerms
from aiorwlock_remote.runtime.store_client import AcquireThrottle, StoreClient
from tests.fixed_clock import StandingClock
from tests.runtime.leases import leased

pytestmark = [pytest.mark.anyio, pytest.mark.only_on("asyncio", "nothing is awaited")]

TERMS = LeaseTerms(30.0)
PATIENCE = 5.0


class NoKeeper:
    def ready(self, terms: LeaseTerms) -> None:
        del terms


class Hindered(LockAcquirer):
    """In its way stands ``error``, until that time; each attempt takes a second."""

    def __init__(self, error: BackendError, until: float) -> None:
        self.clock = StandingClock()
        keeper = NoKeeper()
        client = SimpleNamespace(
            clock=self.clock,
            throttle=AcquireThrottle(self.clock),
            connect_timeout=PATIENCE,
            keeper=keeper,
            acquirers=dict[Any, None](),
        )
        super().__init__(cast("StoreClient", client))
        self.error = error
        self.until = until
        self.tries = 0

    async def _try(self, request: AcquireRequest) -> Lease:
        del request
        self.tries += 1
        if self.clock.now() < self.until:
            raise self.error
        return leased(TERMS, self.clock)

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        if until is not None and self.clock.now() + 1 > until:
            raise LockTimeout(unanswered=True)
        self.clock.seconds += 1
        return await self._try(request)

    def close(self, error: BaseException) -> None:
        raise NotImplementedError

    def waiters(self) -> Iterable[tuple[Mode, float]]:
        raise NotImplementedError


def request(timeout: float | None) -> AcquireRequest:
    return AcquireRequest(resource("order", 1), Mode.WRITE, Policy.FAIR, TERMS, timeout)


def hidden(retry_after: float | None) -> BackendError:
    return BackendUnavailable(what="it is hidden", retry_after=retry_after)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[Hindered]:
    """Sleeping moves the clocks of those in the list."""
    clocks: list[Hindered] = []

    async def sleep(seconds: float) -> None:
        for one in clocks:
            one.clock.seconds += seconds

    monkeypatch.setattr(anyio, "sleep", sleep)
    return clocks


@pytest.mark.parametrize("timeout", [10, None])
async def test_a_passing_error_is_waited_for(
    slept: list[Hindered], timeout: float | None
) -> None:
    taking = Hindered(hidden(0.5), until=4)
    slept.append(taking)
    lease = await taking.acquire(request(timeout))
    assert lease.ticket == "t"
    assert taking.tries == 3


@pytest.mark.parametrize(
    ("timeout", "after", "tries"),
    [
        (0, 0.5, 1),  # without waiting the error comes at once
        (10, None, 1),  # it is not known to pass
        (10, 3600.0, 1),  # it is known not to pass in time
        (10, 0.5, 7),
        (None, 0.5, 4),  # for connect_timeout
    ],
)
async def test_a_lasting_error_is_raised(
    slept: list[Hindered], timeout: float | None, after: float | None, tries: int
) -> None:
    """Also if the time is up while an attempt is under way: not that it timed out."""
    taking = Hindered(hidden(after), until=1000)
    slept.append(taking)
    with pytest.raises(BackendUnavailable) as caught:
        await taking.acquire(request(timeout))
    assert caught.value is taking.error
    assert taking.tries == tries


async def test_a_holder_that_came_meanwhile_is_named(slept: list[Hindered]) -> None:
    taking = Hindered(hidden(0.5), until=1000)
    slept.append(taking)

    async def wait(request: AcquireRequest, until: float | None) -> Any:  # noqa: ANN401
        if taking.clock.now() > 3:
            raise LockTimeout(holders=("write 4f1c",))
        return await Hindered._wait(taking, request, until)

    taking._wait = wait  # type: ignore[method-assign]
    with pytest.raises(LockTimeout, match="4f1c"):
        await taking.acquire(request(10))
