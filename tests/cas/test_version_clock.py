"""No two holders by the frame's time, whatever wall clocks and messages do.

A world in one thread: processes with skewed wall clocks, boot clocks of any origin,
messages that take from nothing to several leases, crashes, and one row that compares
and sets. What a process believes, and until when, is compared in the world's own time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest

from aiorwlock_remote.cas.version_clock import (
    MAX_VERSIONS_CACHED,
    VersionClock,
    WrittenAt,
    earliest_now,
)
from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Release, Renew
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.transition import transition
from tests.fixed_clock import StandingClock

SKEW = 10_000_000
LEASE = 1_000_000
START = 1_700_000_000_000_000
SEEDS = range(150)
PROCESSES = 4
EVENTS = 400


@dataclass(frozen=True)
class Row:
    version: int
    record: Doorman
    seat: MutexRecord | None
    frame: int
    wall: int


Judge = Callable[[WrittenAt, int, int], int]


def ours(written: WrittenAt, boot: int, wall: int) -> int:
    return earliest_now(written, boot, wall, SKEW)


def without_margin(written: WrittenAt, boot: int, wall: int) -> int:
    return earliest_now(written, boot, wall, 0)


def one_wall_for_all(written: WrittenAt, boot: int, wall: int) -> int:
    return max(written.frame + boot - written.seen, wall - SKEW)


@dataclass
class Process:
    number: int
    wall_off: int
    boot_off: int
    cached: Row | None = None
    written: dict[int, WrittenAt] = field(default_factory=dict)
    ticket: str = ""
    until: int = 0  # believes, in the world's time


class SimulatedRow:
    def __init__(self, seed: int, judge: Judge, *, hasty: bool = False) -> None:
        self.random = Random(seed)
        self.judge = judge
        self.hasty = hasty
        self.now = START
        self.row: Row | None = None
        self.version = 0
        self.grants = 0
        self.order = 0
        self.todo: list[tuple[int, int, Callable[[], None]]] = []
        self.processes = [
            Process(number, self.some(SKEW) - SKEW // 2, self.some(10**12))
            for number in range(PROCESSES)
        ]
        for process in self.processes:
            self.later(self.some(LEASE), self.turn, process)

    def some(self, most: int) -> int:
        return self.random.randrange(most + 1)

    def delay(self) -> int:
        return self.some(self.random.choice((2_000, 50_000, 3 * LEASE)))

    def later(self, ago: int, function: Callable[..., None], *args: object) -> None:
        self.order += 1
        heapq.heappush(self.todo, (self.now + ago, self.order, lambda: function(*args)))

    def run(self) -> None:
        for _ in range(EVENTS):
            self.now, _, event = heapq.heappop(self.todo)
            event()

    def turn(self, process: Process) -> None:
        """It reads, releases, renews, crashes or asks; then waits for the answer."""
        believes = process.until > self.now
        chance = self.random.random()
        if chance < 0.15:  # crashed and started again: it remembers nothing
            fresh = Process(process.number, process.wall_off, self.some(10**12))
            self.processes[process.number] = fresh
            # What it believed goes on, for a crash is no release: its threads may live.
            fresh.until = process.until if chance < 0.05 else 0
            self.later(self.delay(), self.load, fresh, self.now)
        elif believes and chance < 0.5:
            self.step(process, Release(process.ticket))
            process.until = 0
        elif believes:
            self.step(process, Renew(((process.ticket, LEASE),)))
        elif chance < 0.4:
            self.later(self.delay(), self.load, process, self.now)
        else:
            self.order += 1
            process.ticket = f"{process.number}-{self.order}"
            self.step(process, Acquire((Claim(process.ticket, LEASE),), Mode.WRITE))

    def load(self, process: Process, sent: int) -> None:
        self.later(self.delay(), self.loaded, process, self.row, sent)

    def loaded(self, process: Process, row: Row | None, sent: int) -> None:
        self.saw(process, row, sent)
        self.later(self.some(LEASE), self.turn, process)

    def saw(self, process: Process, row: Row | None, sent: int) -> None:
        process.cached = row
        if row is not None and row.version not in process.written:
            seen = (sent if self.hasty else self.now) + process.boot_off
            process.written[row.version] = WrittenAt(row.frame, row.wall, seen)

    def step(self, process: Process, command: Acquire | Release | Renew) -> None:
        """As a store without scripts: computed from what it saw last, then sent."""
        row, boot = process.cached, self.now + process.boot_off
        wall = self.now + process.wall_off
        now = wall if self.judge is not one_wall_for_all else wall - SKEW
        record, seat = None, None
        if row is not None:
            record, seat = row.record, row.seat
            now = self.judge(process.written[row.version], boot, wall)
        done = transition(record, seat, command, now, wall)
        self.version += 1
        new = Row(self.version, done.record, done.seat, now, wall)
        process.written[new.version] = WrittenAt(now, wall, boot)
        expected = None if row is None else row.version
        gone = done.seat is None and not done.record.queue
        self.later(
            self.delay(),
            self.arrive,
            process,
            expected,
            new,
            gone,
            done.reply,
            self.now,
        )

    def arrive(
        self,
        process: Process,
        expected: int | None,
        new: Row,
        gone: bool,
        reply: object,
        sent: int,
    ) -> None:
        applied = expected == (None if self.row is None else self.row.version)
        if applied:
            self.row = None if gone else new
        self.later(self.delay(), self.answered, process, applied, self.row, reply, sent)

    def answered(
        self, process: Process, applied: bool, row: Row | None, reply: object, sent: int
    ) -> None:
        self.saw(process, row, sent)
        if applied and not (isinstance(reply, Granted) and not reply.grants):
            held = isinstance(reply, Granted) or process.until > self.now
            if held and sent + LEASE > self.now:
                process.until = max(process.until, sent + LEASE)
                self.grants += isinstance(reply, Granted)
                self.check()
        self.later(self.some(LEASE), self.turn, process)

    def check(self) -> None:
        believing = [p.number for p in self.processes if p.until > self.now]
        if len(believing) > 1:
            raise TwoHoldersError(believing)


class TwoHoldersError(Exception):
    """What must not be."""


def test_one_holder_at_a_time() -> None:
    grants = 0
    for seed in SEEDS:
        simulated = SimulatedRow(seed, ours)
        simulated.run()
        grants += simulated.grants
    assert grants > 10 * len(SEEDS)  # it was about something


def test_without_the_margin_there_are_two() -> None:
    with pytest.raises(TwoHoldersError):
        for seed in SEEDS:
            SimulatedRow(seed, without_margin).run()


def test_one_wall_clock_for_all_gives_two() -> None:
    with pytest.raises(TwoHoldersError):
        for seed in SEEDS:
            SimulatedRow(seed, one_wall_for_all).run()


def test_counting_from_the_request_that_showed_a_version_gives_two() -> None:
    with pytest.raises(TwoHoldersError):
        for seed in SEEDS:
            SimulatedRow(seed, ours, hasty=True).run()


def test_a_waiter_enters_when_the_lease_ends() -> None:
    written = WrittenAt(frame=0, wall=START, seen=5)
    for wall in (START - SKEW, START, START + SKEW):
        assert earliest_now(written, 5 + LEASE, wall, SKEW) == LEASE


def test_a_newcomer_enters_one_clock_skew_after_the_lease() -> None:
    just_seen = WrittenAt(frame=0, wall=START, seen=5)
    assert earliest_now(just_seen, 5, START + LEASE, SKEW) == 0
    assert earliest_now(just_seen, 5, START + LEASE + SKEW, SKEW) == LEASE
    assert earliest_now(just_seen, 5, START + 10**12, None) == 0


def test_a_wall_clock_set_back_turns_nothing_back() -> None:
    assert earliest_now(WrittenAt(7, START, 5), 5, START - 10**12, SKEW) == 7


def test_the_time_of_a_row_waited_for_is_not_forgotten() -> None:
    """Else a busy process would never know how long a lease has been there."""
    clock = StandingClock()
    memory, waited = VersionClock(), UUID(int=0)
    first = memory.read(waited, 0, START, clock)
    for number in range(1, 2 * MAX_VERSIONS_CACHED):
        clock.seconds += 1e-6
        memory.read(UUID(int=number), 0, START, clock)
        assert memory.read(waited, 0, START, clock) is first
    # That of another one is, and counts as if it was seen just now.
    again = memory.read(UUID(int=1), 0, START, clock)
    assert again.seen == micros(clock.now())


def test_a_state_knows_when_it_was_seen_however_many_there_are() -> None:
    """A holder of more locks than are cached renews each from where it stands."""
    clock = StandingClock()
    memory = VersionClock()
    written = [
        memory.read(number, 7, START, clock)
        for number in range(2 * MAX_VERSIONS_CACHED)
    ]
    clock.seconds += 3.0
    assert {memory.times(one, clock).now for one in written} == {7 + 3_000_000}
