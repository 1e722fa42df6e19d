"""The synchronous API by the conformance suite, on a store of each kind."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from aiorwlock_remote.sync import background
from aiorwlock_remote.testing.conformance import ConformanceSuite
from aiorwlock_remote.testing.faults import FaultyLink
from tests.conformance.client_cases import CLIENT_CASES
from tests.conformance.stores.memory import MemoryHarness
from tests.conformance.stores.postgresql import PostgresqlHarness
from tests.conformance.stores.redis import RedisHarness
from tests.conformance.stores.sqlite import SqliteHarness
from tests.servers.fix_postgresql import make_tables
from tests.servers.postgresql import PostgresqlServer
from tests.servers.redis import RedisServer
from tests.sync import adapter
from tests.sync.suites import INTERRUPTIBLE_EVERY, in_threads

# A task that is cancelled when its thread has the grant already drops that grant.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.* was dropped without release; it is given back:ResourceWarning",
    "ignore:.*SyncGrant.__del__:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The tasks of the cases only order the threads: one loop will do."""
    return "asyncio", {}


@pytest.fixture(autouse=True)
def _synchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = "aiorwlock_remote.testing.conformance.harness"
    monkeypatch.setattr(f"{harness}.connect", adapter.Connecting)
    monkeypatch.setattr(background, "CHECK_INTERVAL", INTERRUPTIBLE_EVERY)
    telling = adapter.TellingBackground
    monkeypatch.setattr(background.background(), "__class__", telling)
    # Replies come in the background loop, as those of a store do.
    let_through = FaultyLink.let_through
    monkeypatch.setattr(
        FaultyLink,
        "let_through",
        lambda link: background.background().run_soon(let_through, link),
    )


@pytest.fixture(scope="module")
def redis(redis_server: RedisServer) -> None:
    RedisHarness.server = redis_server


@pytest.fixture(scope="module")
def postgresql(postgresql_server: PostgresqlServer) -> Iterator[None]:
    with postgresql_server.database(f"t_{secrets.token_hex(6)}") as url:
        make_tables(url)
        PostgresqlHarness.url = url
        yield


@in_threads
class TestMemory(ConformanceSuite):
    """``memory://``, with all cases."""

    harness = MemoryHarness()


@in_threads
class TestClient(ConformanceSuite):
    """``memory://``, with the cases that no store can break."""

    cases = CLIENT_CASES
    harness = MemoryHarness()


@pytest.mark.share(0, 6, "the API is the same for all stores")
@in_threads
class TestSqlite(ConformanceSuite):
    """``sqlite:///``."""

    harness = SqliteHarness()


@pytest.mark.share(2, 6, "the API is the same for all stores")
@pytest.mark.usefixtures("redis")
@in_threads
class TestRedis(ConformanceSuite):
    """``redis://``."""

    harness = RedisHarness()


@pytest.mark.share(4, 6, "the API is the same for all stores")
@pytest.mark.usefixtures("postgresql")
@in_threads
class TestPostgresql(ConformanceSuite):
    """``postgresql://``."""

    harness = PostgresqlHarness()
