"""``rwlock stale``: holders that look left behind."""

from __future__ import annotations

import asyncio

import click

from aiorwlock_remote import LockInfo, connect
from aiorwlock_remote.cli.format import RESOURCE_KEYS, nothing, print_resources
from aiorwlock_remote.cli.options import as_json, store, store_option, type_argument


@click.command(
    short_help="List holders that look left behind.",
    epilog=f"{RESOURCE_KEYS}\n--json gives a list of resources with only the holders"
    " that look left behind.",
)
@store_option
@as_json
@click.option(
    "--older-than",
    type=float,
    default=0.0,
    metavar="S",
    help="Only holders that came at least so many seconds ago.",
)
@type_argument
def stale(
    *, url: str | None, as_json: bool, older_than: float, resource_type: str | None
) -> None:
    """List holders that look left behind, of all types or of one.

    Nothing renews or ends them: grants that never expire, leases that ran out with
    nobody asking since, records of programs that do not use this library, and leases
    that nobody has renewed since the store's clock was set back. None of that proves
    that the holder is dead; `rwlock break` ends one that is.
    """
    given = store(url, used=True)
    found = asyncio.run(_stale(given, older_than, resource_type))
    none = nothing(resource_type, "looks left behind")
    print_resources(found, as_json=as_json, none=none)


async def _stale(
    url: str, older_than: float, resource_type: str | None
) -> list[LockInfo]:
    async with connect(url) as locks:
        return [seen async for seen in locks.stale(older_than, resource_type)]
