"""``rwlock demo``, the command.

A demo from start to end: ledgers, workers, script, verdict.
"""

from __future__ import annotations

import secrets
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final
from urllib.parse import quote

import anyio
import click

from aiorwlock_remote import RWLock, connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.console import RichConsole
from aiorwlock_remote.cli.demo import worker
from aiorwlock_remote.cli.demo.faults import FaultPlan, InjectedFaults, WorkerPool
from aiorwlock_remote.cli.demo.screen import DemoState, Stage, stage
from aiorwlock_remote.cli.demo.verdict import Report, report
from aiorwlock_remote.cli.demo.worker import WorkerPlan
from aiorwlock_remote.cli.options import (
    FloatRange,
    loop_option,
    store_option,
    store_url,
)
from aiorwlock_remote.cli.report import tell
from aiorwlock_remote.cli.signals import Interrupt
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.testing.history import History, read_history

if TYPE_CHECKING:
    from rich.console import Console


LEDGERS = ("north", "south")
LEASE = 1.0
FRAME_INTERVAL = 0.1
TYPE = "rwlock-demo"
NOTHING_LEFT = "nothing is left behind"


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. ``url`` None: a fresh SQLite file."""

    url: str | None
    processes: int
    seconds: float
    broken: bool
    loop: str


async def show(settings: Settings, console: Console) -> int:
    """All of it; the exit code. Leaves nothing behind, or says what."""
    interrupt = Interrupt()
    code = exit_codes.REFUSED
    left = NOTHING_LEFT
    async with anyio.create_task_group() as group:
        group.start_soon(interrupt.listen, group.cancel_scope)
        with tempfile.TemporaryDirectory(prefix="rwlock-demo-") as folder:
            playing = _DemoRun(settings, console, Path(folder))
            try:
                code = await playing.run()
            finally:
                left = playing.left_behind()
        group.cancel_scope.cancel()
    if interrupt.by is not None:
        tell(f"{interrupt.by.name}: all workers are ended, {left}")
        return exit_codes.SIGNAL + interrupt.by
    return code


@final
class _DemoRun:
    def __init__(self, settings: Settings, console: Console, folder: Path) -> None:
        self._settings = settings
        self._console = console
        self._folder = folder
        self._url = settings.url or f"sqlite:///{quote(str(folder))}/locks.db"
        # With three workers all have to share one, so that somebody takes over.
        self._ledgers = LEDGERS[: settings.processes // 2]
        self._run = secrets.token_hex(3)
        self._crew: WorkerPool | None = None

    async def run(self) -> int:
        """Play, then judge."""
        worker.create_ledgers(self._folder / "ledger.db", self._ledgers)
        plans = [self._plan(number) for number in range(self._settings.processes)]
        files = [self._folder / f"{plan.name}.jsonl" for plan in plans]
        scene = DemoState(files, self._ledgers)
        self._announce()
        async with AsyncExitStack() as stack:
            locks = await self._locks(stack)
            crew = self._crew = WorkerPool(plans)
            await stack.enter_async_context(crew)
            with stage(self._console, scene) as shown:
                staged = await self._play(crew, locks, scene, shown)
                await crew.finish()
                scene.read()
                shown.paint()
        return self._judge(staged)

    def left_behind(self) -> str:
        """In a store of the user's, when the workers are ended."""
        settings = self._settings
        killed = () if self._crew is None else self._crew.killed
        if settings.url is None or settings.broken or not killed:
            return NOTHING_LEFT
        return f"what {' and '.join(killed)} had ends by itself within seconds"

    async def _play(
        self, crew: WorkerPool, locks: dict[str, RWLock], scene: DemoState, shown: Stage
    ) -> InjectedFaults:
        with ExitStack() as stack:
            file = self._folder / "demo.jsonl"
            history = stack.enter_context(History(file, process="demo"))
            script = FaultPlan(crew, locks, scene, shown, history)
            async with anyio.create_task_group() as group:

                async def paint() -> None:
                    while True:
                        scene.read()
                        shown.paint()
                        await anyio.sleep(FRAME_INTERVAL)

                group.start_soon(paint)
                if self._settings.broken:
                    await anyio.sleep(self._settings.seconds)
                else:
                    await script.play(self._settings.seconds)
                group.cancel_scope.cancel()
        return script.staged

    async def _locks(self, stack: AsyncExitStack) -> dict[str, RWLock]:
        """The workers' locks, to look at; a store that is not fit shows here."""
        if self._settings.broken:
            return {}
        locks = await stack.enter_async_context(connect(self._url))
        return {name: locks.rwlock(*self._resource(name)) for name in self._ledgers}

    def _plan(self, number: int) -> WorkerPlan:
        name = self._ledgers[number % len(self._ledgers)]
        return WorkerPlan(
            name=f"w{number + 1}",
            folder=str(self._folder),
            ledger=name,
            url=None if self._settings.broken else self._url,
            resource=self._resource(name),
            lease=LEASE,
            loop=self._settings.loop,
        )

    def _resource(self, name: str) -> tuple[str, str]:
        return TYPE, f"{self._run}-{name}"

    def _announce(self) -> None:
        settings = self._settings
        ledgers = "one ledger" if len(self._ledgers) == 1 else "two ledgers"
        store = f"in {parse(settings.url)}" if settings.url else "in a new SQLite file"
        how = f"locks: readers-writer, {store}, lease {LEASE:g} s"
        self._say(
            f"{settings.processes} processes ({settings.loop}) move money in"
            f" {ledgers} for {settings.seconds:g} s"
        )
        self._say("locks: SWITCHED OFF" if settings.broken else how)

    def _judge(self, staged: InjectedFaults) -> int:
        files = sorted(self._folder.glob("*.jsonl"))
        events = list(read_history(files))
        book = worker.read_book(self._folder / "ledger.db")
        found = report(events, book, staged, broken=self._settings.broken)
        self._say(
            f"\nverdict, from {len(events)} recorded events"
            f" and {len(book)} lines of the ledgers' book"
        )
        for line in found.lines():
            self._say(f"  {line}")
        text, style = _conclusion(found)
        self._say(text, style)
        return 0 if found.ok else exit_codes.REFUSED

    def _say(self, text: str, style: str = "") -> None:
        # Folded between words at a terminal, whole in a pipe.
        soft = not self._console.is_terminal
        self._console.print(text, style=style, soft_wrap=soft, markup=False)


def _conclusion(found: Report) -> tuple[str, str]:
    if found.ok:
        return "OK: the locks held", "bold green"
    if found.violations and found.broken:
        return "FAILED, as it must: without locks money is lost", "bold red"
    if found.broken:
        return "FAILED: no locks, and yet nothing was violated; try again", "bold red"
    if found.violations:
        return "FAILED: promises were broken", "bold red"
    return "FAILED: not all that was to be shown was seen", "bold red"


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
        url=store_url(url) if url else None,
        processes=processes,
        seconds=seconds,
        broken=broken,
        loop=loop,
    )
    console = RichConsole(highlight=False)
    return anyio.run(show, settings, console, backend=loop)
