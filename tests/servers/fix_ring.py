"""Three Cassandra nodes for the tests that need them, no longer than those take.

A ring is minutes of processor time and a gigabyte. So these tests come first, one after
the other, which gives them all to one worker, and the ring ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.cassandra_ring import CassandraRing

NAME = "cassandra_ring"
_RING = pytest.StashKey[CassandraRing]()


@pytest.fixture
def cassandra_ring(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CassandraRing:
    """Whose nodes remember what they promised, also when they are killed.

    A test that stops one starts it again and lets the ring settle.
    """
    ring = request.config.stash.get(_RING, None)
    if ring is None:
        folder = tmp_path_factory.mktemp("ring")
        ring = CassandraRing(folder, config={"commitlog_sync": "batch"})
        request.config.stash[_RING] = ring
    return ring


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of the ring first."""
    items.sort(key=lambda item: not _needs_ring(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Iterator[None]:
    """End it when nobody needs it next."""
    try:
        yield
    finally:
        ring = item.config.stash.get(_RING, None)
        if ring is not None and not (nextitem is not None and _needs_ring(nextitem)):
            del item.config.stash[_RING]
            ring.close()


def _needs_ring(item: pytest.Item) -> bool:
    names: list[str] = getattr(item, "fixturenames", [])
    return NAME in names
