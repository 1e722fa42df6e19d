"""The two products of the family, and what tests must say to each in its own words."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import pymysql

from aiorwlock_remote.backends.mariadb import AsyncmyBackend, MariadbBackend
from aiorwlock_remote.backends.mariadb.dialect import MARIADB, MYSQL, ServerDialect
from aiorwlock_remote.backends.mariadb.driver import MariadbDriver, MysqlDriver
from aiorwlock_remote.backends.mysql import MysqlBackend
from tests.servers.mariadb import connected, run

_SESSIONS = (
    "SELECT id FROM information_schema.processlist AS p"
    " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
)
TRANSACTIONS_AGE = 0.15
"""Seconds after which a server looks again at what it tells of its transactions."""


@dataclass(frozen=True)
class Product:
    """A server that speaks the protocol.

    ``too_long``: what it says of a row that it has waited for; ``unlimited``: lets a
    session's reads take as long as they like; ``waits``: a condition on a session
    ``p``: it waits for somebody's row; ``without_rows``: an engine that locks no rows;
    ``without_tls``: settings of a server.
    """

    dialect: ServerDialect
    driver: type[MariadbDriver]
    backend: type[AsyncmyBackend]
    too_long: str
    unlimited: str
    waits: str
    without_rows: str
    without_tls: dict[str, str]

    @property
    def scheme(self) -> str:
        return self.dialect.scheme

    def __str__(self) -> str:
        return self.scheme


MARIADB_PRODUCT = Product(
    MARIADB,
    MariadbDriver,
    MariadbBackend,
    too_long="max_statement_time",
    unlimited="SET SESSION max_statement_time = 0",
    waits="command = 'Query' AND time_ms > 100",
    without_rows="Aria",
    without_tls={},
)
MYSQL_PRODUCT = Product(
    MYSQL,
    MysqlDriver,
    MysqlBackend,
    too_long="Lock wait timeout exceeded",
    unlimited="SET SESSION max_execution_time = 0",
    waits="EXISTS (SELECT 1 FROM information_schema.innodb_trx"
    " WHERE trx_mysql_thread_id = p.id AND trx_state = 'LOCK WAIT')",
    without_rows="MyISAM",
    without_tls={"tls-version": ""},
)
PRODUCTS = (MARIADB_PRODUCT, MYSQL_PRODUCT)


def product_of(url: str) -> Product:
    return next(product for product in PRODUCTS if url.startswith(product.scheme))


def numbers(last: int) -> str:
    """A table to select ``seq`` from: 1 and so on."""
    digits = " UNION ".join(f"SELECT {digit} AS d" for digit in range(10))
    places = ", ".join(f"({digits}) AS {name}" for name in ("a", "b", "c", "e"))
    number = "1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d"
    chosen = f"FROM {places} HAVING seq <= {last} ORDER BY seq"
    return f"(SELECT {number} AS seq {chosen}) AS n"


def foreign_mutexes(last: int) -> str:
    """Another program takes so many at once."""
    insert = "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
    return f"{insert} SELECT 'order', seq, 'theirs' FROM {numbers(last)}"  # noqa: S608 - no input


def sessions(url: str, condition: str = "TRUE") -> list[int]:
    """Those of others in that database."""
    return [number for (number,) in run(url, f"{_SESSIONS} AND {condition}")]


def waiting(url: str) -> list[int]:
    """The sessions that wait for a row."""
    if product_of(url) is MYSQL_PRODUCT:  # a second request at once gets the same reply
        time.sleep(TRANSACTIONS_AGE)
    return sessions(url, product_of(url).waits)


def kill(url: str, *numbers: int) -> None:
    """End these sessions."""
    with connected(url) as connection, connection.cursor() as cursor:
        for number in numbers:
            with suppress(pymysql.OperationalError):  # gone by itself
                cursor.execute(f"KILL {number}")
