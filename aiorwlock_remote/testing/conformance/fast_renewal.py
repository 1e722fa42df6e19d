"""What the keeper finds, found soon."""

from __future__ import annotations

import pytest

OFTEN = 300


def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of 30 seconds are renewed every 0.1 s.

    So a machine that stands still for seconds makes no lease of it that ran out.
    """
    monkeypatch.setattr("aiorwlock_remote.core.lease.RENEW_FRACTION", OFTEN)
    monkeypatch.setattr(
        "aiorwlock_remote.runtime.renewal_worker.BATCHING_DIVISOR", 10 * OFTEN
    )
