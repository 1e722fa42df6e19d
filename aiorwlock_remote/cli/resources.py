"""The commands about resources and their holders: ls, show, stale and break."""

from __future__ import annotations

import shlex
import sys
from contextlib import aclosing
from dataclasses import replace

import click
from anyio import to_thread
from click.core import ParameterSource

from aiorwlock_remote import Holder, LockInfo, Locks
from aiorwlock_remote.cli.exit_codes import REFUSED
from aiorwlock_remote.cli.format import (
    RESOURCE_KEYS,
    fence_of,
    lease_left,
    moment,
    nothing,
    permits,
    print_break_commands,
    print_json,
    print_resources,
    resource_json,
    span,
    table,
    who,
)
from aiorwlock_remote.cli.options import (
    Utf8Text,
    as_json,
    fail_option,
    on_store,
    resource_argument,
    semaphore_option,
    store_option,
    store_url,
    type_argument,
)
from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.core.names import is_cut
from aiorwlock_remote.core.text import plain
from aiorwlock_remote.core.url import parse


@click.command(
    short_help="List what is held or waited for.",
    epilog=f"{RESOURCE_KEYS}\n--json gives a list of resources.",
)
@store_option
@as_json
@fail_option
@type_argument
def ls(*, url: str | None, as_json: bool, fail: bool, resource_type: str | None) -> int:
    """List the resources that are held or waited for, of all types or of one.

    There is one line for each holder; at a terminal, those that look left behind are
    red. A lease that ended stays on show until another process asks for the resource.
    """

    async def listed(locks: Locks) -> list[LockInfo]:
        return [seen async for seen in locks.list(resource_type)]

    found = on_store(store_url(url, must_be_used=True), listed)
    none = nothing(resource_type, "is held or waited for")
    print_resources(found, as_json=as_json, none=none)
    return REFUSED if found and fail else 0


@click.command(
    short_help="List holders that look left behind.",
    epilog=f"{RESOURCE_KEYS}\n--json gives a list of resources with only the holders"
    " that look left behind.",
)
@store_option
@as_json
@fail_option
@click.option(
    "--older-than",
    type=float,
    default=0.0,
    metavar="S",
    help="Only holders that got their grant at least so many seconds ago.",
)
@type_argument
@click.pass_context
def stale(
    ctx: click.Context,
    *,
    url: str | None,
    as_json: bool,
    fail: bool,
    older_than: float,
    resource_type: str | None,
) -> int:
    """List holders that look left behind, of all types or of one.

    Their grants are neither renewed nor ended: grants that never expire, leases that
    ran out unnoticed, records of programs that do not use this library, and leases that
    were not renewed since the store's clock was set back. None of that proves that the
    holder is dead; `rwlock break` ends the grant of one that is.
    """

    async def left_behind(locks: Locks) -> list[LockInfo]:
        return [seen async for seen in locks.stale(older_than, resource_type)]

    found = on_store(store_url(url, must_be_used=True), left_behind)
    none = nothing(resource_type, "looks left behind")
    print_resources(found, as_json=as_json, none=none)
    if not as_json:
        print_break_commands(found, _store_words(ctx, url))
        ended = [seen.target.label for seen in found if not seen.locked]
        if ended:
            click.echo(plain(f"\nfree, nothing to do: {', '.join(sorted(ended))}"))
    return REFUSED if found and fail else 0


def _store_words(ctx: click.Context, url: str | None) -> str:
    # What the user typed; the environment names the store again for the next command.
    if (
        url is None
        or ctx.get_parameter_source("url") is not ParameterSource.COMMANDLINE
    ):
        return ""
    return f"--url {shlex.quote(url)} " if parse(url).password is None else "--url URL "


async def _info(locks: Locks, target: tuple[str, str], *, semaphore: bool) -> LockInfo:
    # What is shown of a long name is cut and is no name of a resource: such a target is
    # looked for among all resources, as it was shown.
    if any(map(is_cut, target)):
        async with aclosing(locks.list()) as listed:
            async for seen in listed:
                same = (seen.resource_type, seen.resource_id) == target
                if same and seen.semaphore is semaphore:
                    return seen
    if semaphore:
        return await locks.semaphore(*target, limit=1).info()
    return await locks.rwlock(*target).info()


# ------------------------------------------------------------------------------ show


@click.command(epilog=f"{RESOURCE_KEYS}\n--json gives one resource.")
@store_option
@as_json
@semaphore_option
@resource_argument
@click.pass_context
def show(
    ctx: click.Context,
    *,
    url: str | None,
    as_json: bool,
    semaphore: bool,
    target: tuple[str, str],
) -> None:
    """Show who holds TYPE/ID and who waits for it.

    A resource that is not held is shown as well: a store has no list of names, and does
    not tell a mistyped name from a free one.
    """
    given = store_url(url, must_be_used=True)
    seen = on_store(given, lambda locks: _info(locks, target, semaphore=semaphore))
    if as_json:
        print_json(resource_json(seen))
    else:
        _print(seen)
        print_break_commands([seen], _store_words(ctx, url))


def _print(seen: LockInfo) -> None:
    state = "held" if seen.locked else "free"
    if seen.holders and not seen.locked:
        state = "free: the lease has ended, there is nothing to do"
    last = f", last fence {seen.fence}" if seen.fence else ""
    counted = permits(seen)
    held = f" ({counted} permits)" if counted else ""
    click.echo(plain(f"{seen.target.label} is {state}{held}{last}"))
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


# ----------------------------------------------------------------------------- break

_EPILOG = """\b
--json gives, whether it was broken or not:
  resource    "TYPE/ID"
  holder, fence, reason       as given; fence null for "-"
  broken      true if it was there and is gone now
  now         the resource afterwards, with the keys of `rwlock show --json`
"""

_MAX_FENCE_DIGITS = 19
"""Digits of the highest fence that a store can keep."""


def _fence(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "-":
        return None
    # int() of thousands of digits raises, and no store has such a fence
    # (test_a_fence_beyond_all_fences).
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_FENCE_DIGITS):
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
    "--reason",
    required=True,
    metavar="TEXT",
    type=Utf8Text(),
    callback=_reason,
    help="Why; stands in the answer.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask, at a terminal either.")
@semaphore_option
@resource_argument
def break_(
    *,
    url: str | None,
    as_json: bool,
    semaphore: bool,
    target: tuple[str, str],
    holder: str,
    fence: int | None,
    reason: str,
    yes: bool,
) -> int:
    """End the grant of one holder of TYPE/ID, if it is still the one seen on screen.

    The holder and its fence as `rwlock ls` shows them have to match. A holder that came
    since is left alone: exit code 1 then. A holder that is alive learns of it at its
    next renewal, up to a third of its lease later, and may go on until then: only the
    fence keeps its writes out. At a terminal the command shows the holder, and asks.
    """
    ask = not yes and sys.stdin.isatty() and sys.stdout.isatty()

    async def end_grant(locks: Locks) -> tuple[bool, LockInfo]:
        found = await _info(locks, target, semaphore=semaphore)
        # force_release() compares and deletes what it is given: with this one holder
        # in it, grants that came since, or while the user thinks, are left alone
        # (test_break_only_what_was_seen).
        one = tuple(h for h in found.holders if (h.holder, h.fence) == (holder, fence))
        if ask and one:
            # The terminal blocks a thread, not the loop, which keeps the connection.
            await to_thread.run_sync(_confirm, found, one[0])
        ended = await locks.force_release(replace(found, holders=one), reason=reason)
        return ended > 0, await _info(locks, target, semaphore=semaphore)

    broken, now = on_store(store_url(url, must_be_used=True), end_grant)
    if as_json:
        print_json(
            {
                "resource": now.target.label,
                "holder": holder,
                "fence": fence,
                "reason": reason,
                "broken": broken,
                "now": resource_json(now),
            }
        )
    elif broken:
        click.echo(plain(f"broken: {now.target.label}, held by {holder} ({reason})"))
    if not broken:
        print_message(_why_not(now, holder, fence))
        return REFUSED
    return 0


def _confirm(found: LockInfo, one: Holder) -> None:
    click.confirm(
        plain(f"end the grant of {found.target.label}, {_described(one)}?"), abort=True
    )


def _described(one: Holder) -> str:
    return (
        f"{one.mode} {one.holder} with fence {fence_of(one)} ({who(one)},"
        f" lease: {lease_left(one)})"
    )


def _why_not(now: LockInfo, holder: str, fence: int | None) -> str:
    holders = [_described(one) for one in now.holders]
    return (
        f"nothing broken: {now.target.label} is not held by {holder} with fence"
        f" {'-' if fence is None else fence}; held by {'; '.join(holders) or 'nobody'}"
    )
