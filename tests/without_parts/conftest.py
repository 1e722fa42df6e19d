"""Each test begins like a new process: nothing was checked or reported before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote._util import private_parts
from aiorwlock_remote.backends.redis import hiredis_reader


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(private_parts, "_reported", set())
    hiredis_reader.tells_pushes.cache_clear()
    yield
    hiredis_reader.tells_pushes.cache_clear()
