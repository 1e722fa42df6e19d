"""Passwords, permissions and guardrails, on a node that has them."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session

from aiorwlock_remote import Unsupported
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options, statement
from aiorwlock_remote.backends.cassandra.read_back import Ballots
from aiorwlock_remote.backends.cassandra.session_client import APPLIED
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.servers.fix_cassandra import StartCassandra
from tests.servers.process import until

ROOT = "cassandra"  # name and password, as it comes


def as_root(port: int) -> Session:
    """Once the node has made that role: a moment after it takes connections."""
    found: list[Session] = []

    def let_in() -> bool:
        auth = PlainTextAuthProvider(ROOT, ROOT)
        cluster = Cluster(["127.0.0.1"], port=port, auth_provider=auth)
        try:
            found.append(cluster.connect())
        except NoHostAvailable:
            cluster.shutdown()
        return bool(found)

    until(let_in, "the first role is there", 60.0)
    return found[0]


async def many_at_once(table: Table) -> None:
    """Their ballots may not be read by one request there, so they are one by one."""
    host, keys = current_event_loop(), [("fence", number) for number in range(3)]
    versions = [uuid4() for _ in keys]
    for key, version in zip(keys, versions, strict=True):
        appear = table.request("insert", "t", 1, version, "{}", 1, *key)
        (applied,) = await table.ask(host, appear)
        assert applied[APPLIED]
    together = table.request("read_ballots", ["fence"], [0, 1, 2])
    with pytest.raises(Unsupported, match="Guardrail"):
        await table.ask(host, together)
    ballots = Ballots(table, host)
    wanted = zip(keys, versions, strict=True)
    for read in [ballots.read(key, version, None) for key, version in wanted]:
        ballot = await read
        assert ballot is not None
        assert ballot > 1_600_000_000_000_000


@pytest.mark.slow
@pytest.mark.asyncio
async def test_passwords_and_permissions(start_cassandra: StartCassandra) -> None:
    node = start_cassandra(
        config={
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "permissions_validity": "0ms",
            "roles_validity": "0ms",
            "partition_keys_in_select_warn_threshold": "1",
            "partition_keys_in_select_fail_threshold": "2",
        }
    )
    host = current_event_loop()
    session = as_root(node.port)
    bob = Options("locks", ("127.0.0.1",), node.port, connect_timeout=20.0)
    with pytest.raises(Unsupported, match="cassandra://user:password@"):
        await opening.connect(bob, host)
    bob = replace(bob, username="bob", password="wrong")  # noqa: S106 - of a test
    with pytest.raises(Unsupported, match="cassandra://user:password@"):
        await opening.connect(bob, host)
    try:
        session.execute(
            "CREATE KEYSPACE locks WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        session.execute(statement("schema_pair", bob))
        session.execute("CREATE ROLE bob WITH PASSWORD = 'right' AND LOGIN = true")
        bob = replace(bob, password="right")  # noqa: S106
        with pytest.raises(Unsupported, match="GRANT SELECT"):
            await opening.connect(bob, host)
        session.execute(f"GRANT SELECT ON {bob.quoted} TO bob")
        table = await opening.connect(bob, host)
        appear = table.request("insert", "t", 1, uuid4(), "{}", 1, "order", 42)
        with pytest.raises(Unsupported, match="GRANT MODIFY"):
            await table.ask(host, appear)
        session.execute(f"GRANT MODIFY ON {bob.quoted} TO bob")
        rows = await table.ask(host, appear)
        assert rows[0][APPLIED]
        await many_at_once(table)
        table.close()
    finally:
        session.cluster.shutdown()
