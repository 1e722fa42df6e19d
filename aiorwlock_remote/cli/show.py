"""``rwlock show``: everything about one resource."""

from __future__ import annotations

import asyncio

import click

from aiorwlock_remote import LockInfo, connect
from aiorwlock_remote.cli.cut_names import look
from aiorwlock_remote.cli.format import (
    RESOURCE_KEYS,
    fence_of,
    lease_left,
    moment,
    print_json,
    resource_json,
    resource_of,
    span,
    table,
    who,
)
from aiorwlock_remote.cli.options import as_json, resource_argument, store, store_option
from aiorwlock_remote.cli.report import plain


@click.command(epilog=f"{RESOURCE_KEYS}\n--json gives one resource.")
@store_option
@as_json
@resource_argument
def show(*, url: str | None, as_json: bool, target: tuple[str, str]) -> None:
    """Show who holds TYPE/ID and who waits for it.

    A resource that nobody holds is shown, too: to the store there are no names that do
    not exist.
    """
    seen = asyncio.run(_look(store(url, used=True), target))
    if as_json:
        print_json(resource_json(seen))
    else:
        _print(seen)


async def _look(url: str, target: tuple[str, str]) -> LockInfo:
    async with connect(url) as locks:
        return await look(locks, target)


def _print(seen: LockInfo) -> None:
    state = "held" if seen.locked else "free"
    last = f", last fence {seen.fence}" if seen.fence else ""
    click.echo(plain(f"{resource_of(seen)} is {state}{last}"))
    if seen.clock_set_back:
        back = span(seen.clock_set_back)
        click.echo(f"the store's clock was set back by {back} since the last change")
    if seen.holders:
        click.echo("\nholders")
        table(
            ("MODE", "HOLDER", "FENCE", "SINCE", "AGE", "LEASE LEFT", "WHO"),
            [
                (
                    holder.mode,
                    holder.holder,
                    fence_of(holder),
                    moment(holder.since, "seconds"),
                    span(holder.age),
                    lease_left(holder),
                    who(holder),
                )
                for holder in seen.holders
            ],
        )
    if seen.queue:
        click.echo("\nwaiting, first come first")
        table(
            ("MODE", "TASKS", "FOR", "WHO"),
            [(q.mode, str(q.waiting), span(q.age), who(q)) for q in seen.queue],
        )
