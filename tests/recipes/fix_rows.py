"""Databases with a table of the user's, and row locks on it by ``connect``."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import oracledb
import psycopg

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.recipes import RowLock
from tests.backends.oracle.programs import make_tables
from tests.recipes.row_sites import LockOf, RowSite
from tests.servers.mariadb import connected
from tests.servers.oracle.client import OracleUser
from tests.servers.plain_rows import PlainRows
from tests.servers.proxy import Proxy


class LocksSite(RowSite):
    """By ``locks.row_lock``."""

    async def open(self) -> AsyncIterator[LockOf]:
        async with connect(self.url) as locks:
            yield partial(lock_of, locks, self.lease)


def lock_of(
    locks: Locks, lease: float | None, key: int, table: str = "invoices"
) -> RowLock:
    return locks.row_lock(table, key, lease=lease)


@contextmanager
def sqlite_site(folder: Path) -> Iterator[LocksSite]:
    """The table is in the application's own file."""
    path = folder / "shop.db"
    connecting = partial(sqlite3.connect, path, timeout=20, check_same_thread=False)
    with PlainRows.at(connecting, "?") as plain:
        plain.make()
        yield LocksSite(plain, f"sqlite:///{folder}/locks.db?rows={path}")


@contextmanager
def postgresql_site(url: str) -> Iterator[LocksSite]:
    """In a database with our tables."""
    with PlainRows.at(partial(psycopg.connect, url), "%s") as plain:
        plain.make()
        yield LocksSite(plain, url)


@contextmanager
def mariadb_site(url: str) -> Iterator[LocksSite]:
    """The same at a server of MariaDB's or MySQL's."""
    connecting = partial(connected, url, autocommit=False)
    with PlainRows.at(connecting, "%s") as plain:
        plain.make()
        yield LocksSite(plain, url)


@contextmanager
def oracle_site(user: OracleUser) -> Iterator[LocksSite]:
    """In the schema of a user."""
    make_tables(user)
    with PlainRows.at(partial(oracledb.connect, **user.login), ":{}") as plain:
        plain.make()
        yield LocksSite(plain, user.url)


def through(proxy: Proxy, url: str) -> str:
    """The same database."""
    before, _, after = url.rpartition("@")
    _, _, database = after.partition("/")
    return f"{before}@127.0.0.1:{proxy.port}/{database}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])
