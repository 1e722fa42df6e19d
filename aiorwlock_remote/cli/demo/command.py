"""``rwlock demo``: starts worker processes, injects faults and prints a verdict."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import click

from aiorwlock_remote import RWLock, connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.console import RichConsole
from aiorwlock_remote.cli.demo.faults import FaultPlan, WorkerPool
from aiorwlock_remote.cli.demo.screen import DemoState, PlainOutput, output_for
from aiorwlock_remote.cli.demo.verdict import Report, report
from aiorwlock_remote.cli.demo.worker import (
    FENCE_MEMORY,
    WorkerPlan,
    create_ledgers,
    read_book,
)
from aiorwlock_remote.cli.options import (
    FloatRange,
    loop_option,
    number_option,
    store_option,
    store_url,
)
from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.cli.signals import Interrupt
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.testing.history import History, read_history

LEDGERS = ("north", "south")
LEASE = 1.0
FRAME_INTERVAL = 0.1
"""Seconds between two updates of the table."""
TYPE = "rwlock-demo"
NOTHING_LEFT = "nothing is left behind"
MIN_PROCESSES, MAX_PROCESSES = 3, 64
WORDS = (
    "lease: how long a grant lasts unless it is renewed; here its holder renews it",
    "fence: the number of a grant (its last digits); each new grant has a higher one",
    "a ledger refuses an access whose fence is lower than the highest that it has seen",
    "queue: 2W 1R means that two wait to write and one to read",
    "waits: half of them took no longer than p50, 99 of 100 no longer than p99",
)
"""The words of the output, explained before the first event."""


@click.command(short_help="See locks at work, and what they survive.")
@store_option
@number_option(
    "--processes",
    "How many work; one of them is killed.",
    6,
    metavar="N",
    kind=click.IntRange(MIN_PROCESSES, MAX_PROCESSES),
)
@number_option(
    "--seconds",
    "Duration; more, if leases have to run out.",
    6.0,
    kind=FloatRange(1, 3600),
)
@click.option("--broken", is_flag=True, help="Without locks: what would happen?")
@loop_option
def demo(*, url: str | None, **options: Any) -> int:  # noqa: ANN401 - as above
    """Watch processes share data under locks, and see what they survive.

    Processes move money between the accounts of shared ledgers, under read and write
    locks. One that holds a lock is stopped past its lease: the ledger refuses what it
    writes afterwards, because its fence is an old one. Another is killed while it holds
    a lock: its lease runs out and the next waiter enters. At the end the recorded
    history is judged; the exit code is 0 only if nothing was violated and both
    happened, else 1.

    With --broken there are no locks, and the same verdict has to find violations:
    exit 1.

    The default store is a new SQLite file. Nothing is left behind: in a store of
    yours, keys of Redis expire within seconds, and rows of the type `rwlock-demo` are
    removed with other unused rows.
    """
    options |= {"url": store_url(url) if url else None}
    return anyio.run(_demo, options, backend=options["loop"])


async def _demo(options: dict[str, Any]) -> int:
    interrupt = Interrupt()
    code = exit_codes.REFUSED
    left = NOTHING_LEFT
    async with interrupt.ends_block():
        with tempfile.TemporaryDirectory(prefix="rwlock-demo-") as folder:
            run = _DemoRun(**options, folder=Path(folder))
            # Also after Ctrl-C: the message says what is left in the store
            # (test_interrupted_it_says_what_it_leaves).
            try:
                code = await run.run()
            finally:
                left = run.left_behind()
    if interrupt.by is not None:
        print_message(f"{interrupt.by.name}: all workers are ended, {left}")
        return exit_codes.SIGNAL + interrupt.by
    return code


@dataclass(kw_only=True)
class _DemoRun:
    # The fields are the options of the command; without a ``url`` a new SQLite file in
    # the ``folder`` is used.

    url: str | None
    processes: int
    seconds: float
    broken: bool
    loop: str
    folder: Path

    def __post_init__(self) -> None:
        self._console = RichConsole(highlight=False)
        self._store = self.url or f"sqlite:///{quote(str(self.folder))}/locks.db"
        # Three workers share one ledger: with two ledgers there might be no waiter that
        # takes over from the killed holder.
        self._ledgers = LEDGERS[: self.processes // 2]
        self._run = secrets.token_hex(3)
        self._pool: WorkerPool | None = None

    async def run(self) -> int:
        create_ledgers(self.folder / "ledger.db", self._ledgers)
        plans = [self._plan(number) for number in range(self.processes)]
        files = [self.folder / f"{plan.name}.jsonl" for plan in plans]
        state = DemoState(files, self._ledgers)
        self._announce()
        async with AsyncExitStack() as stack:
            locks = await self._locks(stack)
            pool = self._pool = WorkerPool(plans)
            await stack.enter_async_context(pool)
            with (
                output_for(self._console, state) as output,
                History(self.folder / "demo.jsonl", process="demo") as history,
            ):
                faults = FaultPlan(pool, locks, state, output, history)
                await self._work(faults, state, output)
                await pool.finish()
                state.read()
                output.paint()
        return self._judge(faults.seen)

    def left_behind(self) -> str:
        # What is left in the user's store after the workers have ended.
        killed = () if self._pool is None else self._pool.killed
        if self.url is None or self.broken or not killed:
            return NOTHING_LEFT
        return f"what {' and '.join(killed)} had ends by itself within seconds"

    async def _work(
        self, faults: FaultPlan, state: DemoState, output: PlainOutput
    ) -> None:
        async def paint() -> None:
            while True:
                state.read()
                output.paint()
                await anyio.sleep(FRAME_INTERVAL)

        async with anyio.create_task_group() as group:
            group.start_soon(paint)
            if self.broken:
                await anyio.sleep(self.seconds)
            else:
                await faults.inject(self.seconds)
            group.cancel_scope.cancel()

    async def _locks(self, stack: AsyncExitStack) -> dict[str, RWLock]:
        # A store that is not fit for locks fails here, before any worker is started.
        if self.broken:
            return {}
        opened = connect(self._store, fence_memory=FENCE_MEMORY)
        locks = await stack.enter_async_context(opened)
        return {name: locks.rwlock(*self._resource(name)) for name in self._ledgers}

    def _plan(self, number: int) -> WorkerPlan:
        name = self._ledgers[number % len(self._ledgers)]
        return WorkerPlan(
            name=f"w{number + 1}",
            folder=str(self.folder),
            ledger=name,
            url=None if self.broken else self._store,
            resource=self._resource(name),
            lease=LEASE,
            loop=self.loop,
        )

    def _resource(self, name: str) -> tuple[str, str]:
        return TYPE, f"{self._run}-{name}"

    def _announce(self) -> None:
        ledgers = "one ledger" if len(self._ledgers) == 1 else "two ledgers"
        store = f"in {parse(self.url)}" if self.url else "in a new SQLite file"
        locks = f"locks: readers-writer, {store}, lease {LEASE:g} s"
        self._print(
            f"{self.processes} processes ({self.loop}) move money in"
            f" {ledgers} for {self.seconds:g} s"
        )
        self._print("locks: SWITCHED OFF" if self.broken else locks)
        for line in WORDS:
            self._print(f"  {line}", "dim")
        self._print("")

    def _judge(self, seen: Mapping[str, str]) -> int:
        events = list(read_history(sorted(self.folder.glob("*.jsonl"))))
        book = read_book(self.folder / "ledger.db")
        found = report(events, book, seen, broken=self.broken)
        self._print(
            f"\nverdict, from {len(events)} recorded events"
            f" and {len(book)} lines of the ledgers' book"
        )
        for line in found.lines():
            self._print(f"  {line}")
        self._print(_conclusion(found), "bold green" if found.ok else "bold red")
        return 0 if found.ok else exit_codes.REFUSED

    def _print(self, text: str, style: str = "") -> None:
        # Lines are folded between words at a terminal, and whole in a pipe.
        soft = not self._console.is_terminal
        self._console.print(text, style=style, soft_wrap=soft, markup=False)


def _conclusion(found: Report) -> str:
    if found.ok:
        return "OK: the locks held"
    if found.violations and found.broken:
        return "FAILED, as it must: without locks money is lost"
    if found.broken:
        return "FAILED: no locks, and yet nothing was violated; try again"
    if found.violations:
        return "FAILED: promises were broken"
    return "FAILED: not all that was to be shown was seen"
