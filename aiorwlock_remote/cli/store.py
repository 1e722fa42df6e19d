"""The commands about a store as a whole: ``doctor`` and ``schema``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import click

from aiorwlock_remote import connect
from aiorwlock_remote.backends.cassandra.options import (
    TABLE,
    check_name,
    statement_for_table,
)
from aiorwlock_remote.backends.mariadb import dialect as mariadb_dialects
from aiorwlock_remote.backends.mariadb import options as mariadb_options
from aiorwlock_remote.backends.mariadb import schema as mariadb_schema
from aiorwlock_remote.backends.oracle.options import check_schema
from aiorwlock_remote.backends.oracle.schema import statements_of
from aiorwlock_remote.backends.postgresql import options as postgresql_options
from aiorwlock_remote.backends.postgresql import schema as postgresql_schema
from aiorwlock_remote.backends.sqlite.sqlite_file import statements_of_sqlite
from aiorwlock_remote.cli.exit_codes import REFUSED
from aiorwlock_remote.cli.format import print_json, table
from aiorwlock_remote.cli.options import as_json, store_option, store_url
from aiorwlock_remote.cli.streams import reader_may_leave
from aiorwlock_remote.ports import Finding


@click.command(
    short_help="Examine a store: fit for locks?",
    epilog="--json gives a list of {name, value, meaning, rating}.",
)
@store_option
@as_json
def doctor(*, url: str | None, as_json: bool) -> int:
    """Examine the store, and say what that means for locks.

    Shown are latency, how waiters are woken, and, of a server, version, clock,
    persistence, memory, events and rights. Nothing is changed. Exits with 1 if
    something is bad.
    """

    async def examine(url: str) -> list[Finding]:
        async with connect(url) as locks:
            return [finding async for finding in locks.examine()]

    found = asyncio.run(examine(store_url(url, must_exist=True)))
    # The exit code is for scripts, whatever `head` does with the table.
    with reader_may_leave():
        if as_json:
            fields = ("name", "value", "meaning", "rating")
            print_json([{name: getattr(f, name) for name in fields} for f in found])
        else:
            rows = [(f.rating, f.name, f.value, f.meaning) for f in found]
            table(("", "WHAT", "FOUND", "WHICH MEANS"), rows)
    return REFUSED if any(f.rating == "bad" for f in found) else 0


# ---------------------------------------------------------------------------- schema


class _Stores(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `rwlock schema` shows the help, as `rwlock` does.
        return super().parse_args(ctx, args or ["--help"])


@click.group(
    cls=_Stores,
    short_help="Print the statements that make a store's tables.",
    subcommand_metavar="STORE [OPTIONS]",
)
def schema() -> None:
    """Print the statements that make the tables of a store; run none of them."""


_user = click.option(
    "--user",
    metavar="NAME",
    default="",
    help="Grant this user the least rights that do, if it is not the owner.",
)


@schema.command()
@click.option("--keyspace", metavar="NAME", help="Qualifies the table's name.")
@click.option("--table", metavar="NAME", default=TABLE, show_default=True)
@click.option(
    "--layout",
    type=click.Choice(["pair", "type"]),
    default="pair",
    show_default=True,
    help="The partition key: the pair of type and id, or the type alone as published.",
)
@click.option(
    "--widen",
    is_flag=True,
    help="Statements for a published table that exists already.",
)
def cassandra(*, keyspace: str | None, table: str, layout: str, widen: bool) -> None:
    """Print CQL that makes the table of the locks.

    With the pair (type, id) as partition key no resource waits for another. With the
    type, all integer ids of one type take turns.
    """
    name = _shown(check_name("table", table))
    if keyspace is not None:
        name = f"{_shown(check_name('keyspace', keyspace))}.{name}"
    statement = "widen" if widen else f"schema_{layout}"
    _print([statement_for_table(statement, name)])


@schema.command()
@click.option(
    "--schema", "owner", metavar="NAME", default="", help="Owner of the tables."
)
@_user
def oracle(*, owner: str, user: str) -> None:
    """Print SQL for Oracle 12.2 and later that makes the lock tables."""
    _print(statements_of(check_schema(owner), check_schema(user)))


@schema.command()
@click.option("--schema", "owner", metavar="NAME", default="", help="Of the tables.")
@_user
def postgresql(*, owner: str, user: str) -> None:
    """Print SQL for PostgreSQL 12 and later that makes the lock tables."""
    check = postgresql_options.check_schema
    _print(postgresql_schema.statements_of(check(owner), check(user)))


@schema.command()
@click.option("--database", metavar="NAME", default="", help="Of the tables.")
@_user
def mariadb(*, database: str, user: str) -> None:
    """Print SQL for MariaDB 10.6 and later that makes the lock tables."""
    _print_mariadb(mariadb_dialects.MARIADB, database, user)


@schema.command()
@click.option("--database", metavar="NAME", default="", help="Of the tables.")
@_user
def mysql(*, database: str, user: str) -> None:
    """Print SQL for MySQL 8.0.17 and later that makes the lock tables."""
    _print_mariadb(mariadb_dialects.MYSQL, database, user)


def _print_mariadb(
    dialect: mariadb_dialects.ServerDialect, database: str, user: str
) -> None:
    check = partial(mariadb_options.check_name, dialect.scheme)
    _print(mariadb_schema.statements_of(dialect, check(database), check(user)))


@schema.command()
def sqlite() -> None:
    """Print SQL for SQLite that makes the lock tables, as connect() does by itself."""
    _print(statements_of_sqlite())


def _shown(name: str) -> str:
    # In CQL a name with capitals needs quotes.
    return name if name == name.lower() else f'"{name}"'


def _print(statements: Iterable[str]) -> None:
    for statement in statements:
        click.echo(statement + ";")
