"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote.backends.cassandra.options import options_of, statement
from aiorwlock_remote.core.url import parse
from tests.backends.oracle.programs import make_tables
from tests.cli.fix_cli import Store
from tests.conformance.stores.files import PlainFiles
from tests.conformance.stores.sqlite import PlainSqlite
from tests.servers.fix_cassandra import Keyspace
from tests.servers.fix_etcd import SharedEtcd
from tests.servers.oracle.client import OracleUser
from tests.servers.plain import PlainOracle
from tests.servers.plain_cassandra import PlainCassandra
from tests.servers.plain_etcd import PlainEtcd


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh file of locks; or a table, where a test is for every one."""
    if getattr(request, "param", "sqlite") == "sqlite":
        path = tmp_path / "locks.db"
        return Store(f"sqlite:///{path}", PlainSqlite(path))
    if request.param == "files":
        place = tmp_path / "locks"
        place.mkdir()
        return Store(place.as_uri(), PlainFiles(place))
    if request.param == "oracle":
        user: OracleUser = request.getfixturevalue("oracle_user")
        make_tables(user)
        return Store(user.at("19c").url, PlainOracle(user.at("19c"), ""))
    if request.param == "etcd":
        server: SharedEtcd = request.getfixturevalue("etcd_server")
        url: str = request.getfixturevalue("etcd_url")
        folder = f"/{url.rpartition('/')[2]}"
        return Store(f"{url}?clock_skew=0", PlainEtcd(server, folder, ""))
    keyspace: Keyspace = request.getfixturevalue("keyspace")
    keyspace.visit.rows(statement("schema_pair", options_of(parse(keyspace.url))))
    return Store(f"{keyspace.url}?clock_skew=0", PlainCassandra(keyspace, ""))
