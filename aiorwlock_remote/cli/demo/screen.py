"""The output of a demo: a live table at a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aiorwlock_remote.testing.checker import quantile
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
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from rich.console import JustifyMethod


RATE_WINDOW_NS = 1_000_000_000
"""Nanoseconds of the past in which grants are counted for "grants per second"."""


def short(fence: int) -> str:
    """Return the fence as text; a long one as ``…`` and its last six digits."""
    text = str(fence)
    return text if len(text) <= 7 else f"…{text[-6:]}"


@dataclass(slots=True)
class LedgerState:
    """Who holds and waits for the lock of one ledger, computed from recorded events.

    ``holding``: grants by their holders, with the present ends of their leases.
    """

    holding: dict[str, Granted] = field(default_factory=dict[str, Granted])
    waiting: dict[str, EventMode] = field(default_factory=dict[str, EventMode])
    fence: int = 0
    waits: deque[int] = field(default_factory=lambda: deque[int](maxlen=1000))
    _granted: deque[int] = field(default_factory=lambda: deque[int](maxlen=5000))

    def holders(self) -> list[Granted]:
        at = now()
        # A killed worker never records that it left.
        return [e for e in self.holding.values() if e.until is None or e.until > at]

    def queue(self) -> str:
        count = Counter[str](self.waiting.values())
        return " ".join(f"{count[mode]}{mode}" for mode in "WR" if count[mode]) or "-"

    def wait_times(self) -> tuple[float, float]:
        """Return the 50th and 99th percentile of the waits, in milliseconds."""
        waits = self.waits or [0]
        return quantile(waits, 0.5) / 1e6, quantile(waits, 0.99) / 1e6

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
                self.holding[event.holder] = event
                self.fence = max(self.fence, event.fence)
                self.waits.append(event.at - event.asked_at)
                self._granted.append(event.at)
            case Access() | Releasing():
                if grant := self.holding.get(event.holder):
                    self.holding[event.holder] = replace(grant, until=event.until)
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


E = TypeVar("E", bound=Event)


def first(
    kind: type[E], events: Iterable[Event], matches: Callable[[E], bool]
) -> E | None:
    """Return the earliest event of a kind for which ``matches`` is true, or None."""
    found = (event for event in events if isinstance(event, kind))
    return min(filter(matches, found), key=lambda event: event.at, default=None)


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
        seconds = (now() - self._began) / 1e9
        # Lines are folded between words at a terminal, and whole in a pipe.
        soft = not self._console.is_terminal
        self._console.print(Text(f"{seconds:5.1f} s  {text}"), soft_wrap=soft)
        self._console.file.flush()

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


class TableOutput(PlainOutput):
    """Draws a table of who holds and waits for each lock, below the printed texts."""

    def __init__(self, console: Console, state: DemoState) -> None:
        super().__init__(console, state)
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def paint(self) -> None:
        table = _table(self._state, self._console.width)
        self._live.update(Group("", table, ""), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def output_for(console: Console, state: DemoState) -> PlainOutput:
    """Return a ``TableOutput`` for a terminal, a ``PlainOutput`` for a file or pipe."""
    return (TableOutput if console.is_terminal else PlainOutput)(console, state)


_COLUMNS = {
    "LEDGER": 6,
    "MODE": 5,
    "HELD BY": 8,
    "AGE": 6,
    "LEASE": 6,
    "FENCE": 7,
    "QUEUE": 5,
    "GRANTS/S": 8,
    "WAIT p50/p99": 12,
}
"""The least width of each column."""
_TO_THE_LEFT = ("LEDGER", "MODE", "HELD BY")
_STYLES = {"write": "red", "read": "green", "free": "dim", "BOTH": "bold reverse red"}


def _table(state: DemoState, width: int) -> Table:
    gap = 2 if width >= WIDE_COLUMNS else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name, least in _COLUMNS.items():
        side: JustifyMethod = "left" if name in _TO_THE_LEFT else "right"
        table.add_column(name, min_width=least, no_wrap=True, justify=side)
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
            ledger.queue(),
            str(ledger.rate()),
            "{:.0f}/{:.0f} ms".format(*ledger.wait_times()),
        )
    return table


def _in_words(name: str, ledger: LedgerState, marks: Mapping[str, str]) -> str:
    holders = ledger.holders()
    by = _names(holders, marks)
    p50, p99 = ledger.wait_times()
    return (
        f"{name}: {_mode(holders)}{' by ' if by else ''}{by}, queue {ledger.queue()},"
        f" {ledger.rate()} grants/s, waits p50 {p50:.0f} p99 {p99:.0f} ms"
    )


def _names(holders: Sequence[Granted], marks: Mapping[str, str]) -> str:
    names = sorted(holder.process for holder in holders)
    return ",".join(f"{n} {marks[n]}" if n in marks else n for n in names)


def _mode(holders: Sequence[Granted]) -> str:
    modes = {holder.mode for holder in holders}
    if "W" in modes and len(holders) > 1:
        # The violation that locks prevent; seen with --broken.
        return "BOTH"
    return "write" if "W" in modes else "read" if modes else "free"


def _age(holders: Sequence[Granted]) -> str:
    if not holders:
        return ""
    age = (now() - min(holder.at for holder in holders)) / 1e6
    return f"{age:.0f} ms"


def _lease(holders: Sequence[Granted]) -> str:
    ends = [holder.until for holder in holders if holder.until is not None]
    return f"{(min(ends) - now()) / 1e9:.2f} s" if ends else ""
