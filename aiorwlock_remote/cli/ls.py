"""``rwlock ls``: what is held or waited for."""

from __future__ import annotations

import asyncio

import click

from aiorwlock_remote import LockInfo, connect
from aiorwlock_remote.cli.format import RESOURCE_KEYS, nothing, print_resources
from aiorwlock_remote.cli.options import as_json, store, store_option, type_argument


@click.command(
    short_help="List what is held or waited for.",
    epilog=f"{RESOURCE_KEYS}\n--json gives a list of resources.",
)
@store_option
@as_json
@type_argument
def ls(*, url: str | None, as_json: bool, resource_type: str | None) -> None:
    """List the resources that are held or waited for, of all types or of one.

    One line for each holder. A lease that ended stays on show until somebody asks for
    the resource.
    """
    found = asyncio.run(_list(store(url, used=True), resource_type))
    none = nothing(resource_type, "is held or waited for")
    print_resources(found, as_json=as_json, none=none)


async def _list(url: str, resource_type: str | None) -> list[LockInfo]:
    async with connect(url) as locks:
        return [seen async for seen in locks.list(resource_type)]
