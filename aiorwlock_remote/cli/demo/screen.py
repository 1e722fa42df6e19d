"""The output of a demo: a live table at a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Event,
    EventMode,
    Granted,
    Lost,
    Released,
    Releasing,
    decode_event,
    now,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


RATE_WINDOW_NS = 1_000_000_000
"""Nanoseconds of the past in which grants are counted for "grants per second"."""


def short(fence: int) -> str:
    """Return the fence as text; a long one as ``…`` and its last six digits."""
    text = str(fence)
    return text if len(text) <= 7 else f"…{text[-6:]}"


@dataclass(slots=True)
class ActiveHolder:
    """A holder in recorded events; ``until``: end of its lease in ns of ``now()``."""

    process: str
    mode: EventMode
    fence: int
    at: int
    until: int | None


@dataclass(slots=True)
class LedgerState:
    """Who holds and waits for the lock of one ledger, computed from recorded events."""

    holding: dict[str, ActiveHolder] = field(default_factory=dict[str, ActiveHolder])
    waiting: dict[str, EventMode] = field(default_factory=dict[str, EventMode])
    fence: int = 0
    waits: deque[int] = field(default_factory=lambda: deque[int](maxlen=1000))
    _granted: deque[int] = field(default_factory=lambda: deque[int](maxlen=5000))

    def holders(self) -> list[ActiveHolder]:
        at = now()
        # A killed worker never records that it left.
        return [e for e in self.holding.values() if e.until is None or e.until > at]

    def queue(self) -> Counter[EventMode]:
        return Counter(self.waiting.values())

    def rate(self) -> int:
        since = now() - RATE_WINDOW_NS
        while self._granted and self._granted[0] < since:
            self._granted.popleft()
        return len(self._granted)

    def add(self, event: Event) -> None:
        match event:
            case Ask():
                self.waiting[event.holder] = event.mode
            case Granted():
                self.waiting.pop(event.holder, None)
                self.holding[event.holder] = ActiveHolder(
                    event.process, event.mode, event.fence, event.at, event.until
                )
                self.fence = max(self.fence, event.fence)
                self.waits.append(event.at - event.asked_at)
                self._granted.append(event.at)
            case Access() | Releasing():
                if event.holder in self.holding:
                    self.holding[event.holder].until = event.until
            case Released() | Lost():
                self.holding.pop(event.holder, None)
            case _:
                pass


class DemoState:
    """What the workers of a demo have recorded so far.

    ``ledgers``: who holds and waits for the lock of each ledger, by its name.
    ``events``: all events, in the order in which they were read. ``marks``: maps a
    worker's name to ``stopped`` or ``killed``, if that was done to it.
    """

    def __init__(self, files: Iterable[Path], ledgers: Iterable[str]) -> None:
        self.ledgers: dict[str, LedgerState] = {name: LedgerState() for name in ledgers}
        self.events: list[Event] = []
        self.marks: dict[str, str] = {}
        self._read = dict.fromkeys(files, 0)

    def read(self) -> None:
        """Read what the workers have added to their event files since the last call."""
        for path, done in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(done)
                text = file.read()
            # A worker may be about to write a line: its beginning is read next time.
            whole = text.rfind(b"\n") + 1
            self._read[path] = done + whole
            for line in text[:whole].splitlines():
                event = decode_event(line)
                self.events.append(event)
                ledger = self.ledgers.get(getattr(event, "resource", ""))
                if ledger is not None:
                    ledger.add(event)


# ------------------------------------------------------------------------ the output

WIDE_COLUMNS = 100
"""Columns of a terminal from which a fence is shown in full."""


class PlainOutput:
    """Prints each text as a line, and who holds which lock once a second."""

    def __init__(self, console: Console, state: DemoState) -> None:
        self._console = console
        self._state = state
        self._began = now()
        self._painted = 0

    def tell(self, text: str) -> None:
        self._print(f"{_seconds_since(self._began)}  {text}")

    def paint(self) -> None:
        whole = (now() - self._began) // 1_000_000_000
        if whole > self._painted:
            self._painted = whole
            ledgers, marks = self._state.ledgers.items(), self._state.marks
            self.tell("; ".join(_in_words(*named, marks) for named in ledgers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()


class TableOutput:
    """Draws a table of who holds and waits for each lock, below the printed texts."""

    def __init__(self, console: Console, state: DemoState) -> None:
        self._console = console
        self._state = state
        self._began = now()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def tell(self, text: str) -> None:
        self._console.print(Text(f"{_seconds_since(self._began)}  {text}"))

    def paint(self) -> None:
        self._live.update(
            Group("", _table(self._state, self._console.width), ""), refresh=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


DemoOutput = PlainOutput | TableOutput


def output_for(console: Console, state: DemoState) -> DemoOutput:
    """Return a ``TableOutput`` for a terminal, a ``PlainOutput`` for a file or pipe."""
    return (TableOutput if console.is_terminal else PlainOutput)(console, state)


_LEFT: tuple[tuple[str, int], ...] = (("LEDGER", 6), ("MODE", 5), ("HELD BY", 8))
_RIGHT: tuple[tuple[str, int], ...] = (
    ("AGE", 6),
    ("LEASE", 6),
    ("FENCE", 7),
    ("QUEUE", 5),
    ("GRANTS/S", 8),
    ("WAIT p50/p99", 12),
)
_STYLES = {"write": "red", "read": "green", "free": "dim", "BOTH": "bold reverse red"}


def _table(state: DemoState, width: int) -> Table:
    gap = 2 if width >= WIDE_COLUMNS else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name, least in _LEFT:
        table.add_column(name, min_width=least, no_wrap=True)
    for name, least in _RIGHT:
        table.add_column(name, min_width=least, no_wrap=True, justify="right")
    for name, ledger in state.ledgers.items():
        holders = ledger.holders()
        mode = _mode(holders)
        table.add_row(
            name,
            Text(mode, style=_STYLES[mode]),
            _names(holders, state.marks),
            _age(holders),
            _lease(holders),
            str(ledger.fence) if width >= WIDE_COLUMNS else short(ledger.fence),
            _queue(ledger),
            str(ledger.rate()),
            "{:.0f}/{:.0f} ms".format(*_waits(ledger)),
        )
    return table


def _in_words(name: str, ledger: LedgerState, marks: Mapping[str, str]) -> str:
    holders = ledger.holders()
    by = _names(holders, marks)
    p50, p99 = _waits(ledger)
    return (
        f"{name}: {_mode(holders)}{' by ' if by else ''}{by}, queue {_queue(ledger)},"
        f" {ledger.rate()} grants/s, waits p50 {p50:.0f} p99 {p99:.0f} ms"
    )


def _names(holders: Sequence[ActiveHolder], marks: Mapping[str, str]) -> str:
    names = sorted(holder.process for holder in holders)
    return ",".join(f"{n} {marks[n]}" if n in marks else n for n in names)


def _mode(holders: Sequence[ActiveHolder]) -> str:
    modes = {holder.mode for holder in holders}
    if "W" in modes and len(holders) > 1:
        # The violation that locks prevent; seen with --broken.
        return "BOTH"
    return "write" if "W" in modes else "read" if modes else "free"


def _age(holders: Sequence[ActiveHolder]) -> str:
    if not holders:
        return ""
    age = (now() - min(holder.at for holder in holders)) / 1e6
    return f"{age:.0f} ms"


def _lease(holders: Sequence[ActiveHolder]) -> str:
    ends = [holder.until for holder in holders if holder.until is not None]
    return f"{(min(ends) - now()) / 1e9:.2f} s" if ends else ""


def _queue(ledger: LedgerState) -> str:
    queue = ledger.queue()
    return " ".join(f"{queue[mode]}{mode}" for mode in ("W", "R") if queue[mode]) or "-"


def _waits(ledger: LedgerState) -> tuple[float, float]:
    # The 50th and 99th percentile, in milliseconds.
    waits = sorted(ledger.waits) or [0]
    half, most = (math.ceil(len(waits) * part) - 1 for part in (0.5, 0.99))
    return waits[half] / 1e6, waits[most] / 1e6


def _seconds_since(began: int) -> str:
    return f"{(now() - began) / 1e9:5.1f} s"
