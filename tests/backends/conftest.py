"""What tests of all backends share."""

from __future__ import annotations

import pytest

from aiorwlock_remote.cas import server_time


@pytest.fixture(autouse=True)
def _nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the first steps, when one in many would do it: requests are counted."""
    monkeypatch.setattr(
        "aiorwlock_remote._util.purge.randrange", lambda every: every - 1
    )


@pytest.fixture
def patient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what counts requests: on a machine that stands still, a step comes to the
    server later than it may, and is sent again.
    """
    monkeypatch.setattr(server_time, "MIN_SLACK", 5_000_000)
