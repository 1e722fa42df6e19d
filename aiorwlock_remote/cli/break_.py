"""``rwlock break``: ends one holder, as seen on screen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import click

from aiorwlock_remote import Holder, LockInfo, connect
from aiorwlock_remote.cli.cut_names import look
from aiorwlock_remote.cli.exit_codes import REFUSED
from aiorwlock_remote.cli.format import (
    fence_of,
    lease_left,
    print_json,
    resource_json,
    resource_of,
    who,
)
from aiorwlock_remote.cli.options import as_json, resource_argument, store, store_option
from aiorwlock_remote.cli.report import plain, tell

_EPILOG = """\b
--json gives, whether it was broken or not:
  resource    "TYPE/ID"
  holder, fence, reason       as given; fence null for "-"
  broken      true if it was there and is gone now
  now         the resource afterwards, with the keys of `rwlock show --json`
"""

_DIGITS = 19
"""Of the highest fence that a store can keep."""


@dataclass(frozen=True, slots=True)
class SeenHolder:
    """A holder as somebody saw it on screen; ``fence`` None: a foreign program."""

    holder: str
    fence: int | None

    def matches(self, one: Holder) -> bool:
        """Whether it is this one."""
        return (one.holder, one.fence) == (self.holder, self.fence)


def _fence(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "-":
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS):
        raise click.BadParameter(f"{value!r} is neither a number nor -", ctx, param)
    return int(value)


def _reason(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("say why", ctx, param)
    return value


@click.command("break", short_help="End one holder, as seen on screen.", epilog=_EPILOG)
@store_option
@as_json
@click.option("--holder", required=True, metavar="H", help="12 hex digits, as shown.")
@click.option(
    "--fence",
    required=True,
    metavar="F",
    callback=_fence,
    help="Its fence as shown; - for a foreign program.",
)
@click.option(
    "--reason", required=True, metavar="TEXT", callback=_reason, help="Why; is told."
)
@resource_argument
def break_(
    *,
    url: str | None,
    as_json: bool,
    target: tuple[str, str],
    holder: str,
    fence: int | None,
    reason: str,
) -> int:
    """End the grant of one holder of TYPE/ID, if it is still the one seen on screen.

    The holder and its fence as `rwlock ls` shows them have to match, so that whoever
    came since is left alone: exit code 1 then. A holder that is alive learns of it at
    its next renewal, up to a third of its lease later, and may go on until then: only
    the fence keeps its writes out.
    """
    seen = SeenHolder(holder, fence)
    broken, now = asyncio.run(_break(store(url, used=True), target, seen, reason))
    if as_json:
        print_json(
            {
                "resource": resource_of(now),
                "holder": holder,
                "fence": fence,
                "reason": reason,
                "broken": broken,
                "now": resource_json(now),
            }
        )
    elif broken:
        click.echo(plain(f"broken: {resource_of(now)}, held by {holder} ({reason})"))
    if not broken:
        tell(_why_not(now, seen))
        return REFUSED
    return 0


async def _break(
    url: str, target: tuple[str, str], seen: SeenHolder, reason: str
) -> tuple[bool, LockInfo]:
    async with connect(url) as locks:
        found = await look(locks, target)
        # A doorman with only that holder: force_release compares and deletes just it.
        one = tuple(holder for holder in found.holders if seen.matches(holder))
        broken = await locks.force_release(replace(found, holders=one), reason=reason)
        return broken > 0, await look(locks, target)


def _why_not(now: LockInfo, seen: SeenHolder) -> str:
    holders = [
        f"{one.mode} {one.holder} with fence {fence_of(one)} ({who(one)},"
        f" lease: {lease_left(one)})"
        for one in now.holders
    ]
    fence = "-" if seen.fence is None else seen.fence
    return (
        f"nothing broken: {resource_of(now)} is not held by {seen.holder} with fence"
        f" {fence}; held by {'; '.join(holders) or 'nobody'}"
    )
