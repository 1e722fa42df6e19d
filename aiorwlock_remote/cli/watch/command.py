"""``rwlock watch``, the command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import click

from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.format import RESOURCE_KEYS
from aiorwlock_remote.cli.interrupt import ENDING, taken
from aiorwlock_remote.cli.options import as_json, store, store_option, type_argument
from aiorwlock_remote.cli.watch import state
from aiorwlock_remote.cli.watch.output import LineOutput
from aiorwlock_remote.cli.watch.scanner import (
    Clock,
    StoreScanner,
    SystemClock,
    poll_loop,
)
from aiorwlock_remote.cli.watch.state import WatchState
from aiorwlock_remote.core.lease import check_seconds
from aiorwlock_remote.core.url import parse

if TYPE_CHECKING:
    from aiorwlock_remote.cli.watch.output import ScreenOutput

MIN_INTERVAL = 0.2
TAKEN = (*ENDING, signal.SIGTSTP)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    url: str
    resource_type: str | None
    every: float
    as_json: bool


@click.command(
    short_help="See who holds and who waits, live.",
    epilog=f"{state.CHANGE_KEYS}\n{RESOURCE_KEYS}",
)
@store_option
@as_json
@click.option(
    "--every",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds from one look at the store to the next; 0.2 at least.",
)
@type_argument
def watch(
    *, url: str | None, as_json: bool, every: float, resource_type: str | None
) -> int:
    """See what is held or waited for, of all types or of one, until Ctrl-C.

    At a terminal the table of `rwlock ls` is drawn again and again: first what is
    waited for, longest wait first. What changed in the last seconds is bold, a lease
    that ended is red, and the last changes stand below.

    Elsewhere, and with --json, a line is printed for each change. What comes and goes
    between two looks is not seen.

    Each look lists the store once, as `rwlock ls` does; a store that is slow to answer
    is asked less often. One that stops to answer is asked again until it is back.
    """
    check_seconds("--every", every, least=MIN_INTERVAL)
    given = store(url, used=True)
    return asyncio.run(_watch(Wanted(given, resource_type, every, as_json)))


async def _watch(wanted: Wanted) -> int:
    view, clock = WatchState(), SystemClock()
    ended_by: signal.Signals | None = None
    async with AsyncExitStack() as stack:
        eye = await stack.enter_async_context(
            StoreScanner(wanted.url, wanted.resource_type)
        )
        show = _show(wanted, view, clock)
        stack.enter_context(show)
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                nonlocal ended_by
                with anyio.open_signal_receiver(*taken(TAKEN)) as received:
                    async for number in received:
                        if number != signal.SIGTSTP:
                            ended_by = number
                            group.cancel_scope.cancel()
                            return
                        show.leave()
                        os.kill(os.getpid(), signal.SIGSTOP)

            async def repaint() -> None:
                """A slow store is no reason not to follow the size of a terminal."""
                while True:
                    await clock.sleep(wanted.every)
                    if view.as_of is not None:
                        show.paint()

            group.start_soon(listen)
            group.start_soon(repaint)
            await poll_loop(eye.look, view, show, wanted.every, clock)
    assert ended_by is not None
    return exit_codes.SIGNAL + ended_by


def _show(wanted: Wanted, view: WatchState, clock: Clock) -> ScreenOutput | LineOutput:
    out = sys.__stdout__ or sys.stdout
    if wanted.as_json:
        return LineOutput(state.as_json, out.fileno())
    if not out.isatty() or os.environ.get("TERM") in {"dumb", "unknown"}:
        return LineOutput(state.as_line, out.fileno())
    # Imported here: lines need no rich.
    from aiorwlock_remote.cli.console import RichConsole  # noqa: PLC0415
    from aiorwlock_remote.cli.watch.output import ScreenOutput  # noqa: PLC0415
    from aiorwlock_remote.cli.watch.render import render  # noqa: PLC0415

    title = f"{parse(wanted.url)}  {wanted.resource_type or ''}".rstrip()
    return ScreenOutput(
        RichConsole(force_terminal=True, highlight=False),
        lambda size: render(view, title, wanted.every, clock.now(), size),
    )
