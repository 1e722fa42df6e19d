"""Requests over the driver: on every loop, chained, cancelled, and their errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import uuid4

import anyio
import pytest
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    Session,
)
from cassandra.policies import RetryPolicy, WhiteListRoundRobinPolicy

from aiorwlock_remote import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.session_client import (
    APPLIED,
    ReplyHandler,
    Request,
    Rows,
)
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.conftest import both_layouts
from tests.servers.fix_cassandra import Keyspace

pytestmark = [pytest.mark.anyio]

KEY = ("order", 42)


def appear(table: Table, ticket: str = "gluww") -> Request:
    return table.request("insert", ticket, 1000, uuid4(), "{}", 5, *KEY)


@both_layouts
async def test_a_refusal_tells_the_row(table: Table) -> None:
    host = current_event_loop()
    rows = await table.ask(host, appear(table))
    assert rows[0][APPLIED] is True
    rows = await table.ask(host, appear(table, "other"))
    assert rows[0][APPLIED] is False
    assert rows[0]["ticket"] == "gluww"
    assert rows[0]["record"] == "{}"
    assert rows[0]["frame"] == 5


@pytest.fixture
def calling_back(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Where the driver calls back with answers."""
    threads, came = list[threading.Thread](), ReplyHandler.came

    def noted(answer: ReplyHandler, rows: Rows | None) -> None:
        threads.append(threading.current_thread())
        came(answer, rows)

    monkeypatch.setattr(ReplyHandler, "came", noted)
    return threads


async def test_over_a_users_session_the_drivers_thread_does(
    layout: str,
    options: Options,
    keyspace: Keyspace,
    calling_back: list[threading.Thread],
) -> None:
    assert layout
    lent = await opening.use_session(
        keyspace.visit.session, options, current_event_loop()
    )
    rows = await lent.ask(current_event_loop(), appear(lent))
    assert rows[0][APPLIED] is True
    assert len(calling_back) == 1
    assert calling_back != [threading.current_thread()]


async def test_many_at_once(table: Table) -> None:
    host = current_event_loop()
    asked = [
        table.ask(
            host,
            table.request("insert", "t", 1000, uuid4(), "{}", 5, f"thing{number},x", 0),
        )
        for number in range(200)
    ]
    answers = [await pending for pending in asked]
    assert all(rows[0][APPLIED] for rows in answers)


async def test_cancelling_takes_nothing_back(table: Table) -> None:
    host = current_event_loop()
    with anyio.CancelScope() as scope:
        pending = table.ask(host, appear(table))
        scope.cancel()
        await pending
    rows = await pending
    assert rows[0][APPLIED] is True


async def test_a_dropped_table_is_a_typed_error(
    create: Callable[[str], None], options: Options, keyspace: Keyspace
) -> None:
    create("pair")
    table = await opening.connect(options, current_event_loop())
    keyspace.visit.rows(f"DROP TABLE {options.quoted}")
    with pytest.raises(Unsupported, match="rwlock schema cassandra"):
        await table.ask(current_event_loop(), appear(table))
    table.close()


async def test_a_closed_session_was_not_asked(table: Table) -> None:
    table.close()
    with pytest.raises(BackendUnavailable) as caught:
        await table.ask(current_event_loop(), appear(table))
    assert caught.value.nothing_done


class Meddler(RetryPolicy):  # type: ignore[misc]  # the driver has no types
    """What must never reach our statements."""

    def on_request_error(self, *_: object, **__: object) -> object:
        raise AssertionError

    on_read_timeout = on_write_timeout = on_unavailable = on_request_error


def users_session(keyspace: Keyspace, kind: str) -> Session:
    contact, port = ["127.0.0.1"], keyspace.node.port
    near = WhiteListRoundRobinPolicy(contact)
    if kind == "profiles":
        profile = ExecutionProfile(near, Meddler(), row_factory=lambda *_: 1 / 0)
        profiles = {EXEC_PROFILE_DEFAULT: profile}
        return Cluster(contact, port=port, execution_profiles=profiles).connect()
    if kind == "plain":
        return Cluster(contact, port=port).connect()
    with pytest.warns(DeprecationWarning, match="Legacy"):
        cluster = Cluster(
            contact,
            port=port,
            load_balancing_policy=near,
            default_retry_policy=Meddler(),
        )
    session = cluster.connect()
    session.row_factory = lambda *_: 1 / 0
    session.default_timeout = 0.000001
    return session


@pytest.mark.parametrize("kind", ["profiles", "plain", "legacy"])
async def test_a_session_of_the_users_is_used_and_left_alone(
    layout: str, options: Options, keyspace: Keyspace, kind: str
) -> None:
    session = users_session(keyspace, kind)
    host = current_event_loop()
    try:
        table = await opening.use_session(session, options, host)
        (statement, *_) = (table.request("insert").statement,)
        assert not isinstance(statement.retry_policy, Meddler)
        rows = await table.ask(host, appear(table))
        assert rows[0][APPLIED] is True
        assert table.layout == layout
        table.close()
        assert not session.is_shutdown
        if kind == "plain":
            assert session.execute("SELECT key FROM system.local").one().key == "local"
    finally:
        session.cluster.shutdown()
    with pytest.raises(ConfigurationError, match="is closed"):
        await opening.use_session(session, options, host)
