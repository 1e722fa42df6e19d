"""``rwlock doctor``: is this store fit for locks, and what is to be known of it.

``rwlock schema``: the statements that make the tables of a store; runs none.
"""

from __future__ import annotations

import asyncio

import click

from aiorwlock_remote import connect
from aiorwlock_remote.backends.cassandra.options import (
    TABLE,
    check_name,
    statement_for_table,
)
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
    """Say what the store is like and what that means for locks.

    Latency, how waiters are woken, and, on a server, version, clock, persistence,
    memory, events and rights. Nothing is changed. Exits with 1 if something is bad.
    """
    found = asyncio.run(_examine(store_url(url, must_exist=True)))
    with reader_may_leave():  # the exit code is for scripts
        if as_json:
            fields = ("name", "value", "meaning", "rating")
            print_json([{name: getattr(f, name) for name in fields} for f in found])
        else:
            rows = [(f.rating, f.name, f.value, f.meaning) for f in found]
            table(("", "WHAT", "FOUND", "WHICH MEANS"), rows)
    return REFUSED if any(f.rating == "bad" for f in found) else 0


async def _examine(url: str) -> list[Finding]:
    async with connect(url) as locks:
        return [finding async for finding in locks.examine()]


class _Stores(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Nothing else said, the help; as ``rwlock`` alone."""
        return super().parse_args(ctx, args or ["--help"])


@click.group(
    cls=_Stores,
    short_help="Print the statements that make a store's tables.",
    subcommand_metavar="STORE [OPTIONS]",
)
def schema() -> None:
    """Print what to run where the locks are to live; nothing is run."""


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
    "--widen", is_flag=True, help="For a published table that is there already."
)
def cassandra(*, keyspace: str | None, table: str, layout: str, widen: bool) -> None:
    """CQL.

    With the pair as key no resource waits for another. With the type, all integer ids
    of one type take turns.
    """
    name = _shown(check_name("table", table))
    if keyspace is not None:
        name = f"{_shown(check_name('keyspace', keyspace))}.{name}"
    click.echo(
        statement_for_table("widen" if widen else f"schema_{layout}", name) + ";"
    )


@schema.command()
@click.option("--schema", "owner", metavar="NAME", default="", help="The owner.")
@click.option(
    "--user",
    metavar="NAME",
    default="",
    help="Who is to use them, if not the owner: gets the least rights that do.",
)
def oracle(*, owner: str, user: str) -> None:
    """Oracle's SQL, for 12.2 and later."""
    for statement in statements_of(check_schema(owner), check_schema(user)):
        click.echo(statement + ";")


@schema.command()
@click.option("--schema", "owner", metavar="NAME", default="", help="Of the tables.")
@click.option(
    "--user",
    metavar="NAME",
    default="",
    help="Who is to use them, if not the owner: gets the least rights that do.",
)
def postgresql(*, owner: str, user: str) -> None:
    """SQL of PostgreSQL 12 and later."""
    check = postgresql_options.check_schema
    for statement in postgresql_schema.statements_of(check(owner), check(user)):
        click.echo(statement + ";")


@schema.command()
@click.option("--database", metavar="NAME", default="", help="Of the tables.")
@click.option(
    "--user",
    metavar="NAME",
    default="",
    help="Who is to use them, from any host: gets the least rights that do.",
)
def mariadb(*, database: str, user: str) -> None:
    """SQL of MariaDB 10.6 and later."""
    check = mariadb_options.check_name
    for statement in mariadb_schema.statements_of(check(database), check(user)):
        click.echo(statement + ";")


@schema.command()
def sqlite() -> None:
    """SQL of SQLite; a file that is not there is made by whoever connects."""
    for statement in statements_of_sqlite():
        click.echo(statement + ";")


def _shown(name: str) -> str:
    """As it must stand in CQL, where capitals need quotes."""
    return name if name == name.lower() else f'"{name}"'
