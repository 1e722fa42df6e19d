"""Fixtures: the stores on which the synchronous API is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.store_url import STORES, store_url


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)
