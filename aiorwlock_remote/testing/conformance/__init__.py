"""Conformance suite: tests that every backend must pass, ours and third parties'.

The suite needs pytest, and a fixture ``anyio_backend`` (anyio's plugin has one): every
case runs on each event loop that the fixture names. See ``ConformanceSuite``.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.cases", f"{__name__}.actors")

from aiorwlock_remote.testing.conformance.cases.base import Cases  # noqa: E402
from aiorwlock_remote.testing.conformance.harness import (  # noqa: E402
    ForeignClient,
    Harness,
    Name,
    StoreLocation,
    StoreUnderTest,
)
from aiorwlock_remote.testing.conformance.suite import (  # noqa: E402
    ALL_CASES,
    ConformanceSuite,
)

__all__ = [
    "ALL_CASES",
    "Cases",
    "ConformanceSuite",
    "ForeignClient",
    "Harness",
    "Name",
    "StoreLocation",
    "StoreUnderTest",
]
