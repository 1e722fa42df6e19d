"""``rwlock doctor``: is this store fit for locks, and what is to be known of it."""

from __future__ import annotations

import asyncio

import click

from aiorwlock_remote import connect
from aiorwlock_remote.cli.exit_codes import REFUSED
from aiorwlock_remote.cli.format import print_json, table
from aiorwlock_remote.cli.options import as_json, store, store_option
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
    found = asyncio.run(_examine(store(url, must_exist=True)))
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
