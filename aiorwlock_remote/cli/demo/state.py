"""What the workers' histories tell so far, read while they are written."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from aiorwlock_remote.testing.events import (
    Access,
    Ask,
    Event,
    Granted,
    Lost,
    Mode,
    Released,
    Releasing,
    decoded,
    now,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RATE_WINDOW_NS = 1_000_000_000
"""Grants per second are those of the last second, in nanoseconds."""


def short(fence: int) -> str:
    """The end of a fence: it is what differs within a minute."""
    text = str(fence)
    return text if len(text) <= 7 else f"…{text[-6:]}"


@final
@dataclass(slots=True)
class ActiveHolder:
    """Somebody who holds, as far as was told. ``until``: its local deadline."""

    process: str
    mode: Mode
    fence: int
    at: int
    until: int | None


@final
@dataclass(slots=True)
class LedgerState:
    """What goes on at one ledger."""

    holding: dict[str, ActiveHolder] = field(default_factory=dict[str, ActiveHolder])
    waiting: dict[str, Mode] = field(default_factory=dict[str, Mode])
    fence: int = 0
    waits: deque[int] = field(default_factory=lambda: deque[int](maxlen=1000))
    _granted: deque[int] = field(default_factory=lambda: deque[int](maxlen=5000))

    def holders(self) -> list[ActiveHolder]:
        """Those who hold now; not those whose lease is over."""
        at = now()
        return [e for e in self.holding.values() if e.until is None or e.until > at]

    def queue(self) -> Counter[Mode]:
        """How many wait."""
        return Counter(self.waiting.values())

    def rate(self) -> int:
        """Grants in the last second."""
        since = now() - RATE_WINDOW_NS
        while self._granted and self._granted[0] < since:
            self._granted.popleft()
        return len(self._granted)

    def tell(self, event: Event) -> None:
        """Something more happened here."""
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


@final
class DemoState:
    """All ledgers, and all events in the order in which they were read."""

    def __init__(self, files: Iterable[Path], ledgers: Iterable[str]) -> None:
        self.floors: dict[str, LedgerState] = {name: LedgerState() for name in ledgers}
        self.events: list[Event] = []
        self.marks: dict[str, str] = {}  # what was done to a process
        self._read = dict.fromkeys(files, 0)

    def read(self) -> None:
        """Take in what was written since."""
        for path, done in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(done)
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = done + whole
            for line in text[:whole].splitlines():
                event = decoded(line)
                self.events.append(event)
                floor = self.floors.get(getattr(event, "resource", ""))
                if floor is not None:
                    floor.tell(event)
