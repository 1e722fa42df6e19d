"""Nobody is let in while somebody else still believes in a lease, on any link."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from unittest.mock import patch

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import stepper
from aiorwlock_remote.cas.server_time import (
    MAX_SLACK,
    MIN_SLACK,
    SLACK_DECAY_INTERVAL,
    Bounds,
    ServerTime,
    with_longer_leases,
)
from aiorwlock_remote.cas.table_cas import (
    StoredRow,
    TableCas,
    TableStepper,
    Values,
)
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Downgrade,
    Granted,
    Release,
    Renew,
    Reply,
    Upgrade,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from tests.cas.tables import Link, Tables, VirtualTime, Watch

ORDER = resource("order", 42)
LEASE = 1.0
Hold = tuple[float, float]  # written at the server, believed in until: the world's time


@dataclass
class DyingClient:
    """A process that tries again and again, and dies each time it is let in."""

    virtual_time: VirtualTime
    tables: Tables
    random: Random
    slow: float
    number: int
    holds: list[Hold]
    tries: int = 0
    written: float = 0.0
    sent: float = 0.0
    stepper: TableStepper = field(init=False)
    clock: Watch = field(init=False)

    def start(self) -> None:
        """Its clock has an origin of its own and is a little fast or slow."""
        random = self.random
        self.clock = Watch(
            self.virtual_time, random.uniform(0, 1e6), 1 + random.uniform(-2e-4, 2e-4)
        )
        link = Link(
            self.tables, self.virtual_time, lambda: random.expovariate(1 / self.slow)
        )
        link.carried = self._carried
        times = self.tables.now(), micros(self.clock.now())
        cas = TableCas(link, self.clock, ServerTime(*times))
        self.steps = TableStepper(cas, lambda *_: None, self.virtual_time.after)
        self.virtual_time.after(random.random(), self._try)

    def _carried(self, _: Values, found: StoredRow) -> None:
        if found.done:
            self.written = self.virtual_time.now

    def _try(self) -> None:
        self.tries += 1
        self.sent = self.virtual_time.now
        claim = Claim(f"t{self.number}-{self.tries}", micros(LEASE))
        command: Command = Acquire((claim,), Mode.WRITE)
        self.steps.step(ORDER, command).add_done_callback(self._answered)

    def _answered(self, answer: Pending[Reply]) -> None:
        reply, pause = answer.result(), self.random.uniform(0.02, 0.06)
        if isinstance(reply, Granted):
            age = max(0, reply.now - reply.grants[0].since) / MICROS
            believed = self.sent - age + LEASE / self.clock.speed
            self.holds.append((self.written, believed))
            pause += LEASE
        self.virtual_time.after(pause, self._try)


def tale(seed: int, slow: float) -> tuple[list[Hold], Tables]:
    """Five processes, so many seconds away, for a while."""
    seconds = 10.0 if slow < 0.01 else 60.0
    virtual_time, random = VirtualTime(), Random(seed)
    tables, holds = Tables(virtual_time), list[Hold]()
    for number in range(5):
        DyingClient(virtual_time, tables, random, slow, number, holds).start()
    virtual_time.run(virtual_time.now + seconds)
    return sorted(holds), tables


def overlaps(holds: list[Hold]) -> int:
    """How often somebody was let in while somebody else believed in its lease."""
    return sum(one[1] > other[0] for one, other in pairwise(holds))


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0.0005, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_no_two_holders(slow: float, seed: int) -> None:
    holds, _ = tale(seed, slow)
    assert len(holds) > 7
    assert overlaps(holds) == 0


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0.02, 0.3])
def test_without_the_slack_there_are_two(slow: float) -> None:
    """The naive version: leases from the least the time can be, nothing is late."""

    def as_answered(self: ServerTime, at: int) -> Bounds:
        least = real(self, at).least
        return Bounds(least, least + 10**12)

    real = ServerTime.bounds
    naive = patch.object(ServerTime, "bounds", as_answered)
    with naive, patch.object(stepper, "with_longer_leases", lambda command, _: command):
        assert sum(overlaps(tale(seed, slow)[0]) for seed in range(5)) > 0


@pytest.mark.slow
def test_stretching_without_a_limit_is_not_enough() -> None:
    """A request that is later than its slack has to be refused."""

    def patient(self: ServerTime, at: int) -> Bounds:
        bounds = real(self, at)
        return Bounds(bounds.least, bounds.slack + 10**12)

    def too_little(command: Command, _: int) -> Command:
        return with_longer_leases(command, MIN_SLACK // 2)

    real = ServerTime.bounds
    patience = patch.object(ServerTime, "bounds", patient)
    with patience, patch.object(stepper, "with_longer_leases", too_little):
        assert sum(overlaps(tale(seed, 0.3)[0]) for seed in range(5)) > 0


def test_who_is_late_is_refused_and_then_waits_longer() -> None:
    holds, tables = tale(1, 0.3)
    assert tables.belated > 0
    assert len(holds) > 15


def test_the_price_is_small_on_a_fast_link() -> None:
    """A dead holder's lease ends a tenth of a second late, and no step is refused."""
    holds, tables = tale(1, 0.0005)
    assert tables.belated == 0
    gaps = [later[0] - before[0] for before, later in pairwise(holds)]
    assert max(gaps) < LEASE + MIN_SLACK / MICROS + 0.05


def test_bounds() -> None:
    time = ServerTime(now=5_000_000, at=100)
    assert time.bounds(100) == Bounds(5_000_000, MIN_SLACK)
    later = time.bounds(100 + 2_000_000)
    assert later.least == 5_000_000 + 2_000_000 - 1_000
    assert later.slack == MIN_SLACK + 2_000
    time.update(9_000_000, 3_000_100, took=400_000)
    assert time.bounds(3_000_100) == Bounds(9_000_000, 800_000)
    time.update(9_000_000, 3_000_100, took=10 * MAX_SLACK)
    assert time.bounds(3_000_100).slack == MAX_SLACK
    for _ in range(200):  # answers to what was sent together: they come together
        time.update(9_000_000, 3_000_100, took=1)
    assert time.bounds(3_000_100).slack >= MAX_SLACK * 0.95
    for turn in range(200):
        time.update(9_000_000, 3_000_100 + turn * SLACK_DECAY_INTERVAL, took=1)
    assert time.bounds(3_000_100).slack == MIN_SLACK


def test_one_with_a_slack_of_its_own() -> None:
    """It has the same bounds, of a clock that was set back as well. Quick answers to
    others do not make its slack less.
    """
    time = ServerTime(now=5_000_000, at=0)
    own = time.with_own_slack()
    own.update(6_000_000, 1_000_000, took=400_000)
    assert time.bounds(1_000_000) == Bounds(6_000_000, MIN_SLACK)
    assert own.bounds(1_000_000).slack == 800_000
    for turn in range(200):
        time.update(2_000_000, 1_000_000 + turn * SLACK_DECAY_INTERVAL, took=1)
    at = 1_000_000 + 199 * SLACK_DECAY_INTERVAL
    assert own.bounds(at) == Bounds(2_000_000, 800_000)


def test_every_lease_is_stretched() -> None:
    claim, endless = Claim("a", 5), Claim("b", None)
    acquire = Acquire((claim, endless), Mode.READ, client_id="g")
    longer = Acquire((Claim("a", 12), endless), Mode.READ, client_id="g")
    assert with_longer_leases(acquire, 7) == longer
    moved = Downgrade("x", claim)
    assert with_longer_leases(moved, 7) == Downgrade("x", Claim("a", 12))
    upgrade = Upgrade("x", claim)
    assert with_longer_leases(upgrade, 7) == Upgrade("x", Claim("a", 12))
    release = Release("x", None, (acquire,))
    assert with_longer_leases(release, 7) == Release("x", None, (longer,))
    renew = Renew((("a", 5), ("b", None)))
    assert with_longer_leases(renew, 7) == Renew((("a", 12), ("b", None)))
