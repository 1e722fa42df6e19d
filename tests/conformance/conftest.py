"""Fixtures that several suites of one store share."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from aiorwlock_remote.core.mode_queue import ModeQueue
from aiorwlock_remote.core.pushed import ReplyDelays
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.runtime import wait_queue
from aiorwlock_remote.testing.conformance import Harness
from tests.backends.oracle.programs import make_tables
from tests.conformance.stores.oracle import OracleHarness
from tests.servers.oracle.client import OracleDouble
from tests.servers.real_oracle import real_oracle

WINDOW = 1.0


@pytest.fixture(autouse=True)
def _windows_of_a_busy_machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is next has a second at least to come: the order is what is to be seen."""
    harness: Harness | None = getattr(request.cls, "harness", None)
    least = WINDOW if harness is None else max(WINDOW, 2 * harness.answers_in)

    def patient(
        nonce: str, mode: Mode, poll_policy: PollPolicy, delays: ReplyDelays
    ) -> ModeQueue:
        window = max(least, poll_policy.claim_window)
        return ModeQueue(nonce, mode, replace(poll_policy, claim_window=window), delays)

    monkeypatch.setattr(wait_queue, "ModeQueue", patient)


@pytest.fixture(scope="module")
def oracle_tables(request: pytest.FixtureRequest) -> Iterator[None]:
    """A user with both tables: at ``ORACLE_DSN``, else of the double."""
    real = real_oracle()
    if real is not None:
        OracleHarness.user = real
        yield
        return
    double: OracleDouble = request.getfixturevalue("oracle_double")
    with double.user(f"t_{secrets.token_hex(6)}") as user:
        make_tables(user)
        OracleHarness.user = user
        yield


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """Collect what a test leaves behind in cycles, while its warnings are ignored: or
    another test would be blamed. What was there before is not looked through.
    """
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()
