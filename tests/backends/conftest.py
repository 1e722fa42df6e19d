"""What tests of all backends share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the first steps, when one in many would do it: requests are counted."""
    monkeypatch.setattr(
        "aiorwlock_remote._util.purge.randrange", lambda every: every - 1
    )
