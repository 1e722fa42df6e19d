"""Foreign programs: plain redis-py, the published statements, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from typing import Any

import oracledb
import psycopg
import pymysql
import redis

from aiorwlock_remote.testing.conformance import ForeignClient, Name
from tests.servers.mariadb import connected
from tests.servers.oracle.client import OracleUser
from tests.servers.plain_seats import PlainSeats
from tests.servers.real_oracle import OracleDatabase


class PlainRedis(ForeignClient):
    """The published statements, by redis-py."""

    FREE = """
    local value = redis.call('GET', KEYS[1])
    if value and string.match(value, '^(.*),') == ARGV[1] then
        return redis.call('DEL', KEYS[1])
    end
    return 0
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix

    def take(self, name: Name, ticket: str, ms: int | None = None) -> bool:
        value = self._value(ticket)
        with self._client() as client:
            return bool(client.set(self._key(name), value, nx=True, px=ms))

    def put(self, name: Name, ticket: str) -> None:
        with self._client() as client:
            client.set(self._key(name), self._value(ticket))

    def free(self, name: Name, ticket: str) -> bool:
        with self._client() as client:
            return bool(client.eval(self.FREE, 1, self._key(name), ticket) == 1)

    def clean(self, name: Name) -> None:
        beside = (f"{{{self._key(name)}}}.{p}" for p in ("state", "readers", "queue"))
        with self._client() as client:
            client.delete(*beside)

    def read(self, name: Name) -> str | None:
        with self._client() as client:
            value = client.get(self._key(name))
        assert value is None or isinstance(value, str)
        return None if value is None else value.rpartition(",")[0]

    def _client(self) -> AbstractContextManager[Any]:
        return redis.Redis.from_url(self._url, decode_responses=True)

    def _key(self, name: Name) -> str:
        return f"mutex_locks/{self._prefix}{name[0]},{name[1]}"

    def _value(self, ticket: str) -> str:
        return f"{ticket},{int(time.time())}"


class PlainCluster(PlainRedis):
    """The same by redis-py's client of a cluster, which takes long to connect."""

    @contextmanager
    def _client(self) -> Iterator[redis.RedisCluster]:
        yield _cluster_client(self._url)


@cache
def _cluster_client(url: str) -> redis.RedisCluster:
    first = url.removeprefix("redis+cluster://").partition(",")[0]
    return redis.RedisCluster.from_url(f"redis://{first}", decode_responses=True)


# --------------------------------------- Another program at MariaDB, by pymysql


class PlainMariadb(PlainSeats):
    """The published statements at ``url``."""

    taken = pymysql.IntegrityError

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(prefix)
        self._url = url

    def connected(self) -> AbstractContextManager[Any]:
        return closing(connected(self._url))


# ------------------------------------ Another program at PostgreSQL, by psycopg


class PlainPostgresql(PlainSeats):
    """The published statements at ``url``."""

    taken = psycopg.errors.UniqueViolation

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(prefix)
        self._url = url

    def connected(self) -> AbstractContextManager[Any]:
        return psycopg.connect(self._url)


# --------------------- Another program at Oracle, by the driver's blocking side


class PlainOracle(PlainSeats):
    """The published statements of a user."""

    bind = ":{}"
    taken = oracledb.IntegrityError  # ORA-00001

    def __init__(self, user: OracleUser | OracleDatabase, prefix: str) -> None:
        super().__init__(prefix)
        self._user = user

    def connected(self) -> AbstractContextManager[Any]:
        return oracledb.connect(**self._user.login)
