"""A lock and its clients in virtual time, with faults: histories true to life.

Requests and replies take time and get lost, clients are paused beyond their lease and
killed. With a `Bug` planted the judges have to object.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING

from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Died,
    Event,
    EventMode,
    Failed,
    Granted,
    Lost,
    Refused,
    Released,
    Releasing,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Generator

MS = 1_000_000
LEASE = 100 * MS
MARGIN = 5 * MS
RESOURCE = "catalog,7"


class Bug(Enum):
    READER_IGNORES_WRITER = auto()
    WRITERS_ALONE_RAISE_THE_FENCE = auto()
    RELEASE_FREES_ANYBODY = auto()
    LEDGER_IGNORES_FENCE = auto()


@dataclass
class Store:
    """A readers-writer lock with leases, and a ledger protected by its fence."""

    bug: Bug | None
    holders: dict[str, tuple[EventMode, int]] = field(default_factory=dict)
    fence: int = 0
    accepted: int = 0
    highest: int = 0

    def acquire(self, now: int, holder: str, mode: EventMode) -> int | None:
        self._expire(now)
        modes = {held for held, _ in self.holders.values()}
        if self.bug is Bug.READER_IGNORES_WRITER and mode == "R":
            modes.discard("W")
        if "W" in modes or (modes and mode == "W"):
            return None
        readers_count = self.bug is not Bug.WRITERS_ALONE_RAISE_THE_FENCE
        if mode == "W" or (not modes and readers_count):
            self.fence += 1
        self.holders[holder] = (mode, now + LEASE)
        return self.fence

    def renew(self, now: int, holder: str) -> bool:
        self._expire(now)
        if holder in self.holders:
            self.holders[holder] = (self.holders[holder][0], now + LEASE)
        return holder in self.holders

    def release(self, now: int, holder: str) -> bool:
        self._expire(now)
        if self.bug is Bug.RELEASE_FREES_ANYBODY:
            self.holders.clear()
            return True
        return self.holders.pop(holder, None) is not None

    def access(self, fence: int) -> int | None:
        if fence < self.highest and self.bug is not Bug.LEDGER_IGNORES_FENCE:
            return None
        self.highest = max(self.highest, fence)
        self.accepted += 1
        return self.accepted

    def _expire(self, now: int) -> None:
        alive = {h: held for h, held in self.holders.items() if held[1] > now}
        self.holders = alive


@dataclass
class Scheduler:
    """Runs clients, each a generator that yields how long it sleeps, one at a time."""

    seed: int
    bug: Bug | None = None
    now: int = 0
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.store = Store(self.bug)
        self.names = self.idle = 0

    def run(self, *, clients: int, acquires: int) -> list[Event]:
        """The history of about so many calls of acquire."""
        # Few at a time want the lock, else readers always overlap and no writer enters.
        self.idle = 12 * clients
        wakes = [(0, i, f"p{i}", self.client(f"p{i}")) for i in range(clients)]
        started = clients
        while wakes:
            self.now, number, process, client = heapq.heappop(wakes)
            if self.random.random() < 0.004:
                self.events.append(Died(process, self.now))
                process = f"p{started}"
                client = self.client(process)
                number = started
                started += 1
            if self.names < acquires:
                pause = next(client)
                heapq.heappush(wakes, (self.now + pause, number, process, client))
        return self.events

    def client(self, process: str) -> Generator[int, None, None]:
        while True:
            yield self.some(0, self.idle)
            yield from self.session(process)

    def session(self, process: str) -> Generator[int, None, None]:
        self.names += 1
        mode: EventMode = "W" if self.random.random() < 0.4 else "R"
        who = (process, RESOURCE, f"{self.names:012x}")
        asked_at = self.now
        self.events.append(Ask(*who, asked_at, mode))
        yield self.travel()
        if self.random.random() < 0.03:
            self.events.append(Failed(*who, self.now, asked_at))
            return
        fence = self.store.acquire(self.now, who[2], mode)
        yield self.travel()
        if self.random.random() < 0.05:
            yield 50 * MS  # the reply is lost
            self.events.append(Unknown(*who, self.now, asked_at))
            return
        if fence is None:
            self.events.append(Refused(*who, self.now, asked_at))
            return
        until = asked_at + LEASE - MARGIN
        granted = Granted(*who, self.now, asked_at, mode, fence, until)
        self.events.append(granted)
        until = yield from self.hold(granted)
        yield from self.leave(granted, until)

    def hold(self, held: Granted) -> Generator[int, None, int]:
        """Work under the lock; the last deadline known."""
        until = held.until or 0
        who = (held.process, held.resource, held.holder)
        for step in range(1, self.random.randint(2, 5)):
            if self.random.random() < 0.3:
                sent = self.now
                yield self.travel()
                renewed = self.store.renew(self.now, held.holder)
                yield self.travel()
                if self.random.random() < 0.1:
                    pass  # the reply is lost
                elif renewed:
                    until = max(until, sent + LEASE - MARGIN)
                else:
                    self.events.append(Lost(*who, self.now, "expired"))
            # Too late a pause for a deadline checked before: the fence must help.
            yield self.some(90, 250) if self.random.random() < 0.05 else self.some(0, 6)
            serial = self.store.access(held.fence)
            access = Access(*who, self.now, held.mode, held.fence, step, serial, until)
            self.events.append(access)
        return until

    def leave(self, held: Granted, until: int) -> Generator[int, None, None]:
        who = (held.process, held.resource, held.holder)
        asked_at = self.now
        self.events.append(Releasing(*who, asked_at, until))
        yield self.travel()
        ok: bool | None = None
        if self.random.random() > 0.03:  # else the request is lost
            ok = self.store.release(self.now, held.holder)
        yield self.travel()
        if self.random.random() < 0.03:
            ok = None  # the reply is lost
        self.events.append(Released(*who, self.now, asked_at, ok))

    def travel(self) -> int:
        return self.some(0.1, 3)

    def some(self, least: float, most: float) -> int:
        """A random time; arguments in milliseconds."""
        return round(self.random.uniform(least, most) * MS)


def queue(*, waiters: int, acquires: int, writers: float, seed: int = 0) -> list[Event]:
    """A correct fair lock with so many always waiting: every acquire takes long.

    `writers` is their share. Readers next to each other in the queue enter together.
    """
    random = Random(seed)
    events: list[Event] = []
    waiting: list[Ask] = []
    now, fence, asked = 0, 0, 0
    while asked < acquires:
        while len(waiting) < waiters:
            asked += 1
            mode: EventMode = "W" if random.random() < writers else "R"
            name = f"{asked:012x}"
            waiting.append(Ask(f"p{asked % 10}", RESOURCE, name, now, mode))
        entering = [waiting.pop(0)]
        while waiting and entering[0].mode == waiting[0].mode == "R":
            entering.append(waiting.pop(0))
        fence += 1
        last = now
        for ask in entering:
            who = (ask.process, RESOURCE, ask.holder)
            at = now + random.randrange(MS)
            left = at + random.randrange(MS)
            ok = True if random.random() < 0.9 else None
            until = at + LEASE
            events += [
                ask,
                Granted(*who, at, ask.at, ask.mode, fence, until),
                Releasing(*who, left, until),
                Released(*who, left + MS, left, ok),
            ]
            last = max(last, left + MS)
        now = last
    return events
