"""Which servers the fixtures start: the machine's, unless ``SERVERS`` chooses others.

``SERVERS="redis=sid/valkey-server postgresql=sid/postgresql-18"`` names for a kind of
server a Debian suite and a package of it: see ``roots``. Then
only the tests of those kinds are run. `nox -s servers_of_today` does it for each of the
newer servers in turn.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.servers.roots import Root, root_of

SERVERS = "SERVERS"
_TELLS = {
    "etcd": "etcd",
    "java": "java",
    "mariadb": "mariadbd",
    "mysql": "mysqld",
    "postgresql": "postgres",
}
"""The program of each kind that tells its version; Redis' is named as its package."""
_STARTED_BY = {
    "etcd": {"etcd_server", "start_etcd", "start_etcd_ring"},
    "java": {"cassandra_node", "cassandra_ring", "start_cassandra"},
    "mariadb": {"mariadb_server", "start_mariadb"},
    "mysql": {"mysql_server", "start_group", "start_mysql"},
    "postgresql": {"postgresql_server", "start_postgresql"},
    "redis": {
        *("redis_cluster", "redis_server", "sentinel_group"),
        *("start_cluster", "start_redis", "start_sentinels"),
    },
}
"""The fixtures that start a server of each kind."""
_STARTED_AS = {"CassandraRing": "java", "RedisServer": "redis"}
"""Classes of servers that some modules start themselves."""
_STORES = {"cassandra": "java"}
"""Stores in the names of tests that are not called as their kind of server."""
_DOUBLES = {"mirror", "oracle_double"}
"""Other servers before PostgreSQL, which need an extension of the machine's."""


def any_is() -> bool:
    """Whether a server is chosen."""
    return bool(_chosen())


def package(kind: str) -> str:
    """Of the chosen server; nothing if it is the machine's."""
    return _chosen().get(kind, ("", ""))[1]


def root(kind: str) -> Root | None:
    """Where the chosen server is; None if it is the machine's."""
    where = _chosen().get(kind)
    return root_of(*where) if where else None


def versions() -> Iterator[str]:
    """What each of the chosen servers says of itself."""
    for kind in _chosen():
        there = root(kind)
        assert there is not None
        program = there.program(_TELLS.get(kind) or package(kind))
        output = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        )
        said = output.stdout.partition("\n")[0].removeprefix(program).strip()
        yield f"{kind}: {said} ({there.path.name})"


def is_left_out(item: pytest.Item) -> bool:
    """Whether servers are chosen, and none of them is of this test."""
    kinds = _chosen().keys()
    if not kinds:
        return False
    fixtures: set[str] = set(getattr(item, "fixturenames", []))
    _, _, parameters = item.name.partition("[")
    words = parameters.rstrip("]").split("-")
    named = {_STORES.get(word, word) for word in words}
    module = vars(getattr(item, "module", None) or pytest)
    named |= {kind for name, kind in _STARTED_AS.items() if name in module}
    started = {kind for kind, names in _STARTED_BY.items() if names & fixtures}
    return bool(_DOUBLES & fixtures) or not kinds & (named | started)


def _chosen() -> dict[str, tuple[str, str]]:
    chosen: dict[str, tuple[str, str]] = {}
    for word in os.environ.get(SERVERS, "").split():
        kind, _, where = word.partition("=")
        suite, _, name = where.partition("/")
        if kind not in _STARTED_BY or not name:
            kinds = ", ".join(sorted(_STARTED_BY))
            raise pytest.UsageError(
                f"{SERVERS}: {word} is not KIND=SUITE/PACKAGE; kinds: {kinds}"
            )
        chosen[kind] = suite, name
    return chosen
