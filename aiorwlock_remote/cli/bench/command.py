"""``rwlock bench``, the command."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import click

from aiorwlock_remote import connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.bench.course import LEASE, Course, Settings
from aiorwlock_remote.cli.bench_stats import (
    FIGURE_KEYS,
    Measured,
    as_dict,
    figures,
    rows,
)
from aiorwlock_remote.cli.format import print_json, table
from aiorwlock_remote.cli.interrupt import Interrupt
from aiorwlock_remote.cli.options import (
    FloatRange,
    as_json,
    loop_option,
    store,
    store_option,
)
from aiorwlock_remote.cli.report import tell
from aiorwlock_remote.core.url import parse

MOST_TASKS = 1000


@click.command(short_help="Measure what locks cost here.", epilog=FIGURE_KEYS)
@store_option
@as_json
@click.option(
    "--seconds",
    type=FloatRange(1, 3600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="For how long, in all.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1, MOST_TASKS),
    default=10,
    show_default=True,
    metavar="N",
    help="How many tasks work side by side.",
)
@loop_option
def bench(
    *, url: str | None, as_json: bool, seconds: float, tasks: int, loop: str
) -> int:
    """Measure what locks cost at this store, from here, now.

    A plain request is the floor for this store and this link; REQUESTS tells how many
    of it the middle one of each other thing took, which means something on a busy
    machine as well. It measures and does not judge.

    It uses new names of the type `rwlock-bench`, and gives all of them back, also when
    it is interrupted. A store forgets names that nobody uses as it always does.
    """
    given = store(url, must_exist=True)
    settings = Settings(url=given, tasks=tasks, seconds=seconds, loop=loop)
    interrupt = Interrupt()
    measured = anyio.run(_bench, settings, interrupt, backend=loop)
    if interrupt.by is not None:
        return exit_codes.SIGNAL + interrupt.by
    _show(settings, measured, as_json=as_json)
    return 0


async def _bench(settings: Settings, interrupt: Interrupt) -> list[Measured]:
    measured: list[Measured] = []
    left = "nothing is left behind"
    async with anyio.create_task_group() as group:
        group.start_soon(interrupt.listen, group.cancel_scope)
        with tempfile.TemporaryDirectory(prefix="rwlock-bench-") as folder:
            async with connect(settings.url, lease=LEASE) as locks:
                course = Course(settings, locks, Path(folder))
                try:
                    measured = await course.run()
                finally:
                    if course.killed:
                        left = f"what the other process had ends in {LEASE:g} s"
        group.cancel_scope.cancel()
    if interrupt.by is not None:
        tell(f"{interrupt.by.name}: {left}")
    return measured


def _show(settings: Settings, measured: list[Measured], *, as_json: bool) -> None:
    found = figures(measured)
    if as_json:
        print_json(
            {
                "store": str(parse(settings.url)),
                "loop": settings.loop,
                "tasks": settings.tasks,
                "seconds": settings.seconds,
                "figures": [as_dict(figure) for figure in found],
            }
        )
    else:
        head, *lines = rows(found)
        table(head, lines)
