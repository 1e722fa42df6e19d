"""``rwlock schema``: the statements that make the tables of a store; runs none."""

from __future__ import annotations

import click

from aiorwlock_remote.backends.cassandra.options import TABLE, check_name
from aiorwlock_remote.backends.cassandra.statements import text_of


@click.command(short_help="Print the statements that make a store's tables.")
@click.argument("store", type=click.Choice(["cassandra"]))
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
def schema(
    *, store: str, keyspace: str | None, table: str, layout: str, widen: bool
) -> None:
    """Print what to run where the locks are to live; nothing is run.

    With the pair as key no resource waits for another. With the type, all integer ids
    of one type take turns.
    """
    del store
    name = _shown(check_name("table", table))
    if keyspace is not None:
        name = f"{_shown(check_name('keyspace', keyspace))}.{name}"
    click.echo(text_of("widen" if widen else f"schema_{layout}", name) + ";")


def _shown(name: str) -> str:
    """As it must stand in CQL, where capitals need quotes."""
    return name if name == name.lower() else f'"{name}"'
