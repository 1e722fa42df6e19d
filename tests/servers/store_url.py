"""The stores on which tests of what is above all stores are run."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.backends.cassandra.conftest import furnish
from tests.backends.oracle.programs import make_tables
from tests.servers.fix_cassandra import Keyspace
from tests.servers.oracle.client import OracleUser
from tests.servers.redis import RedisServer

STORES = ("sqlite", "redis", "postgresql")
"""Parameters of the fixtures that call ``store_url``."""
OTHER_STORES = ("memory", "file", "mariadb", "mysql", "oracle", "cassandra", "etcd")
"""More of them, for what differs between stores."""


def store_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A store of the parameter's kind that no other test uses: a file, a prefix, a
    database.
    """
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder}/locks.db"
        case "file":
            return f"file://{folder}"
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            return f"{server.url}?prefix={uuid4().hex}-"
        case "oracle":
            user: OracleUser = request.getfixturevalue("oracle_user")
            make_tables(user)
            return user.url
        case "cassandra":
            keyspace: Keyspace = request.getfixturevalue("keyspace")
            furnish(keyspace, "pair")
            return keyspace.url
    names = {"postgresql": "tables", "etcd": "etcd_url"}
    found: str = request.getfixturevalue(
        names.get(request.param, f"{request.param}_tables")
    )
    return found
