"""Locks behind a link that fails as it is told, and locks of the same store near by."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from aiorwlock_remote import Locks, connect, registry
from tests.runtime.flaky import Link, links

_numbers = count()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """The link of this test's store."""
    target = "tests.runtime.flaky:open_store"
    monkeypatch.setitem(registry._BUILT_IN, "flaky", target)
    link = Link(name=f"n{next(_numbers)}")
    links[link.name] = link
    yield link
    del links[link.name]


@pytest.fixture
async def locks(link: Link) -> AsyncIterator[Locks]:
    """Locks behind the link."""
    async with connect(f"flaky://{link.name}", lease=0.5) as locks:
        yield locks


@pytest.fixture
async def near(locks: Locks, link: Link) -> AsyncIterator[Locks]:
    """Locks of the same store with nothing in between."""
    del locks
    async with connect(f"memory://{link.name}") as near:
        yield near
