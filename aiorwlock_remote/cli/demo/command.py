"""``rwlock demo``, the command."""

from __future__ import annotations

import anyio
import click

from aiorwlock_remote.cli.console import RichConsole
from aiorwlock_remote.cli.demo.runner import Settings, show
from aiorwlock_remote.cli.options import FloatRange, loop_option, store, store_option

MIN_PROCESSES, MAX_PROCESSES = 3, 64


@click.command(short_help="See locks at work, and what they survive.")
@store_option
@click.option(
    "--processes",
    type=click.IntRange(MIN_PROCESSES, MAX_PROCESSES),
    default=6,
    show_default=True,
    metavar="N",
    help="How many work; one of them is killed.",
)
@click.option(
    "--seconds",
    type=FloatRange(1, 3600),
    default=6.0,
    show_default=True,
    metavar="S",
    help="For how long. Longer, if leases have to run out.",
)
@click.option("--broken", is_flag=True, help="Without locks: what would happen?")
@loop_option
def demo(
    *, url: str | None, processes: int, seconds: float, broken: bool, loop: str
) -> int:
    """Watch processes share data under locks, and see what they survive.

    Processes move money between the accounts of shared ledgers, under read and write
    locks. One that holds a lock is stopped past its lease: what it writes afterwards is
    refused by the ledger, because its fence is an old one. Another is killed while it
    holds: its lease runs out and the next waiter enters. At the end the recorded
    history is judged; the exit code is 0 only if nothing was violated and both
    happened, else 1.

    With --broken nobody locks, and the same verdict has to find violations: exit 1.

    The default store is a fresh SQLite file. Nothing is left behind.
    """
    settings = Settings(
        url=store(url) if url else None,
        processes=processes,
        seconds=seconds,
        broken=broken,
        loop=loop,
    )
    console = RichConsole(highlight=False)
    return anyio.run(show, settings, console, backend=loop)
