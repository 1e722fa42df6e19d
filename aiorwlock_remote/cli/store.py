"""The commands about a store as a whole: ``doctor`` and ``schema``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from functools import partial

import anyio
import click

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.backends.cassandra.options import (
    TABLE,
    check_name,
    statement_for_table,
)
from aiorwlock_remote.backends.mariadb import dialect as mariadb_dialects
from aiorwlock_remote.backends.mariadb import options as mariadb_options
from aiorwlock_remote.backends.mariadb import schema as mariadb_schema
from aiorwlock_remote.backends.oracle.options import check_schema
from aiorwlock_remote.backends.oracle.statements import statements_of
from aiorwlock_remote.backends.postgresql import options as postgresql_options
from aiorwlock_remote.backends.postgresql import statements as postgresql_schema
from aiorwlock_remote.backends.sqlite.sqlite_file import statements_of_sqlite
from aiorwlock_remote.cli.exit_codes import REFUSED
from aiorwlock_remote.cli.format import print_json, table
from aiorwlock_remote.cli.options import as_json, on_store, store_option, store_url
from aiorwlock_remote.cli.streams import reader_may_leave
from aiorwlock_remote.cli.worker_process import within
from aiorwlock_remote.ports import Finding

_TRY_LEASE, _TRY_TIMEOUT, _TRY_PAUSE = 10.0, 30.0, 0.02
"""Of ``doctor --try``, in seconds: the lease of its lock, the limit of the hand-over,
and the pause between two looks at the queue.
"""


@click.command(
    short_help="Examine a store: fit for locks?",
    epilog="--json gives a list of {name, value, meaning, rating}.",
)
@store_option
@as_json
@click.option(
    "--try", "try_lock", is_flag=True, help="Also hand a lock from client to client."
)
def doctor(*, url: str | None, as_json: bool, try_lock: bool) -> int:
    """Examine the store, and say what that means for locks.

    Shown are latency, how waiters are woken, and, of a server, version, clock,
    persistence, memory, events and rights. Nothing is changed. Exits with 1 if
    something is bad.

    With --try a client also takes a new lock of the type `rwlock-doctor`, and hands it
    over to a second one that waits for it. The last lines then say how long that took,
    what woke the waiting client, and what this client sent.
    """
    given = store_url(url, must_exist=True)

    async def examine(locks: Locks) -> list[Finding]:
        found = [finding async for finding in locks.examine()]
        if try_lock:
            notified = any(one.value == "notified" for one in found)
            found += await _hand_over(locks, given, notified=notified)
        return found

    found = on_store(given, examine)
    # The exit code is for scripts, whatever `head` does with the table.
    with reader_may_leave():
        if as_json:
            fields = ("name", "value", "meaning", "rating")
            print_json([{name: getattr(f, name) for name in fields} for f in found])
        else:
            rows = [(f.rating, f.name, f.value, f.meaning) for f in found]
            table(("", "WHAT", "FOUND", "WHICH MEANS"), rows)
    return REFUSED if any(f.rating == "bad" for f in found) else 0


async def _hand_over(locks: Locks, url: str, *, notified: bool) -> list[Finding]:
    # Waiters are woken within a process without the store: hence a second client.
    name = "rwlock-doctor", secrets.token_hex(8)
    lock = locks.mutex(*name, lease=_TRY_LEASE)
    left = entered = 0.0

    async def wait() -> None:
        nonlocal entered
        async with waiter.mutex(*name, lease=_TRY_LEASE):
            entered = time.perf_counter()

    async with connect(url) as waiter:
        with within(_TRY_TIMEOUT, "the waiting client", "get the lock"):
            async with anyio.create_task_group() as group, lock:
                group.start_soon(wait)
                while not (await lock.info()).queue:  # noqa: ASYNC110 - of a store
                    await anyio.sleep(_TRY_PAUSE)
                left = time.perf_counter()
        seen = waiter.statistics()
    causes = ", ".join(f"{n} by {cause}" for cause, n in seen.wakeups.items() if n)
    states = "".join(f", {one} {state}" for one, state in seen.connections.items())
    asked = f"{seen.requests_sent} sent, {seen.requests_retried} retried"
    heard = seen.wakeups["message"] + seen.wakeups["pushed"]
    missed = notified and not heard
    woken = "no message of the store came" if missed else "what made that client ask"
    took = f"{(entered - left) * 1e3:.2f} ms"
    return [
        Finding("hand-over", took, "from one client to another one that waits"),
        Finding("wake-ups", causes or "none", woken, "note" if missed else "good"),
        Finding("requests", asked, f"by the client that waited{states}"),
    ]


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
