"""Nobody is let in while another believes a message, on any link to a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from random import seed as set_seed

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.server_time import MIN_SLACK, ServerTime, with_longer_push
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.cas.table_cas import (
    StoredRow,
    TableCas,
    TableStepper,
    Values,
    load_record,
)
from aiorwlock_remote.core import mode_queue
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    Refused,
    Release,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.pushed import MAX_DRIFT, PushedGrant
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy, micros
from aiorwlock_remote.core.transition import transition
from tests.cas.tables import Link, Tables, VirtualTime, Watch

ORDER = resource("order", 42)
POLL_POLICY = PollPolicy(
    poll_min=0.2, poll_max=0.3, entry_ttl=2.0, claim_window=0.3, pushes=True
)
Hold = tuple[float, float]  # written at the server, believed in until: the world's time


@dataclass
class Process:
    """A process that waits, works for a moment, and leaves; it dies whenever it enters
    by a message, and so never confirms one.
    """

    virtual_time: VirtualTime
    tables: Tables
    random: Random
    slow: float
    number: int
    everybody: dict[str, Process]
    holds: list[Hold]
    entered_by_message: int = 0
    tries: int = 0
    written: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        random, name = self.random, f"p{self.number}"
        self.everybody[name] = self
        slowest = 1 / (1 + MAX_DRIFT)
        self.clock = Watch(
            self.virtual_time, random.uniform(0, 1e6), random.choice([slowest, 1.0])
        )
        link = Link(self.tables, self.virtual_time, self._delay)
        link.carried = self._carried
        times = self.tables.now(), micros(self.clock.now())
        cas = TableCas(link, self.clock, ServerTime(*times), ArrivalNotices(name))
        self.steps = TableStepper(cas, lambda *_: None, self.virtual_time.after)
        self.queue = ModeQueue(name, Mode.WRITE, POLL_POLICY)
        self.virtual_time.after(random.random(), self._try)

    def _delay(self) -> float:
        return self.random.expovariate(1 / self.slow)

    def _carried(self, asked: Values, found: StoredRow) -> None:
        if not found.done:
            return
        _, _, text = self.tables.doormen[ORDER.row]
        record = load_record(str(text), "")
        for each in self.everybody.values():
            each.written.setdefault(record.last, self.virtual_time.now)
        wakes = asked["wakes"]
        assert isinstance(wakes, tuple)
        for name in wakes:
            if "p_since" in asked:
                message = PushedGrant.of(record.grants[0])
                hears = partial(self.everybody[name].hears, message)
                self.virtual_time.after(self._delay(), hears)

    def hears(self, message: PushedGrant) -> None:
        """Read a message, and enter if it may be believed."""
        news = self.queue.pushed(message, self.clock.now())
        if news is None:
            return
        (waiter,) = news.served
        assert waiter.ends is not None
        ends = (waiter.ends - self.clock.origin) / self.clock.speed
        self.holds.append((self.written[message.fence], ends))
        self.entered_by_message += 1
        # Dead: neither confirmed nor released. The next one is another process.
        self.queue = ModeQueue(f"p{self.number}", Mode.WRITE, POLL_POLICY)
        self.virtual_time.after(self.random.uniform(0.5, 1.0), self._try)

    def _try(self) -> None:
        self.tries += 1
        claim = Claim(f"t{self.number}-{self.tries}", micros(30.0))
        self._send(self.queue.join(Waiter(claim, Policy.FAIR, margin=0.0)))
        self._look(self.queue)

    def _look(self, queue: ModeQueue) -> None:
        if queue is not self.queue or not queue.waiters:
            return
        if queue.due is not None and queue.due <= self.clock.now():
            self._send(queue.ask())
        self.virtual_time.after(0.005, lambda: self._look(queue))

    def _send(self, command: Acquire | Withdraw | None) -> None:
        if not isinstance(command, Acquire):
            return
        queue, sent_at = self.queue, self.clock.now()

        def answered(pending: Pending[Reply]) -> None:
            if queue is self.queue:
                reply = pending.result()
                assert isinstance(reply, Granted | Waiting | Refused)
                now = self.clock.now()
                self._apply(queue.answered(reply, sent_at, now, self.random.random()))

        self.steps.step(ORDER, command).add_done_callback(answered)

    def _apply(self, news: Effects) -> None:
        for waiter in news.served:
            assert waiter.grant is not None
            written = self.written[waiter.grant.fence]
            self.virtual_time.after(
                0.03, partial(self._release, waiter.ticket, written)
            )
        self._send(news.send)

    def _release(self, ticket: str, written: float) -> None:
        self.holds.append((written, self.virtual_time.now))
        self.steps.step(ORDER, Release(ticket)).log_failure()
        self.virtual_time.after(self.random.uniform(0.0, 0.2), self._try)


def tale(seed: int, slow: float) -> tuple[list[Hold], int]:
    """Return what five processes, so many seconds away, believed to hold, and how often
    one entered by a message.
    """
    # The pauses between attempts are drawn from the module's own generator.
    set_seed(seed)
    virtual_time, random = VirtualTime(), Random(seed)
    tables, holds = Tables(virtual_time), list[Hold]()
    everybody: dict[str, Process] = {}
    for number in range(5):
        Process(virtual_time, tables, random, slow, number, everybody, holds).start()
    virtual_time.run(virtual_time.now + 40.0)
    return sorted(holds), sum(p.entered_by_message for p in everybody.values())


def overlaps(holds: list[Hold]) -> int:
    """Return how often one was let in while another believed to hold."""
    return sum(one[1] > other[0] + 1e-6 for one, other in pairwise(holds))


@pytest.fixture(autouse=True)
def believing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients believe for as long as the rule allows, however little is left."""
    monkeypatch.setattr(mode_queue, "MIN_SHARE_LEFT", 0.0)
    monkeypatch.setattr(mode_queue, "MIN_ROUND_TRIPS_LEFT", 0)


@pytest.mark.parametrize("slow", [0.0005, 0.02, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_two_clients_never_believe_at_once(slow: float, seed: int) -> None:
    holds, entered_by_message = tale(seed, slow)
    assert len(holds) > 10
    assert entered_by_message > 0
    assert overlaps(holds) == 0


class Client:
    """A client whose requests take one millisecond."""

    def __init__(self, virtual_time: VirtualTime, tables: Tables, name: str) -> None:
        self._world = virtual_time
        self._tables = tables
        self.clock = Watch(virtual_time)
        self.queue = ModeQueue(name, Mode.WRITE, POLL_POLICY)
        self.waiter = Waiter(Claim(name, micros(30.0)), Policy.FAIR, margin=0.0)
        link = Link(tables, virtual_time, lambda: 0.001)
        self.time = ServerTime(tables.now(), micros(self.clock.now()))
        cas = TableCas(link, self.clock, self.time, ArrivalNotices(name))
        self.steps = TableStepper(cas, lambda *_: None, virtual_time.after)

    def know_the_time_by_a_slow_answer(self, took: float) -> None:
        """Compute the next step with a time so many seconds behind the server's."""
        server_time = self._tables.now() - micros(took)
        self.time.update(server_time, micros(self.clock.now()), 0)

    def ask(self, command: Acquire | Withdraw | None) -> Reply:
        """Send an acquire of the queue's, and wait for the reply."""
        assert isinstance(command, Acquire)
        sent_at = self.clock.now()
        reply = self.do(command)
        assert isinstance(reply, Granted | Waiting)
        self.queue.answered(reply, sent_at, self.clock.now(), 0.0)
        return reply

    def do(self, command: Acquire | Release) -> Reply:
        pending = self.steps.step(ORDER, command)
        self._world.run(self._world.now + 0.01)
        return pending.result()


def overlap(behind: float) -> float:
    """Return for how many seconds a client believes a message beside the next holder.

    Its step, and that of the client which leaves, is computed with a time so many
    seconds ``behind`` the server's clock.
    """
    virtual_time = VirtualTime()
    tables = Tables(virtual_time)
    first, second, third = (Client(virtual_time, tables, name) for name in "abc")
    assert isinstance(first.ask(first.queue.join(first.waiter)), Granted)
    known = first.steps.known(ORDER)
    assert known is not None
    second.steps.saw(ORDER, known)  # its first swap is carried out
    second.know_the_time_by_a_slow_answer(behind)
    assert isinstance(second.ask(second.queue.join(second.waiter)), Waiting)
    assert isinstance(third.ask(third.queue.join(third.waiter)), Waiting)
    first.steps.saw(ORDER, third.steps.known(ORDER) or known)
    first.know_the_time_by_a_slow_answer(behind)
    first.do(Release("a"))
    _, _, text = tables.doormen[ORDER.row]
    (grant,) = load_record(str(text), "").grants
    news = second.queue.pushed(PushedGrant.of(grant), second.clock.now())
    assert news is not None
    assert second.waiter.ends is not None
    # It dies; the third one asks as soon as the server's clock shows the end.
    assert grant.expires is not None
    left = (grant.expires - tables.now()) / 1e6
    virtual_time.run(virtual_time.now + left + 0.001)
    entered = virtual_time.now
    assert isinstance(third.ask(third.queue.ask()), Granted)
    return second.waiter.ends - entered


def test_a_message_is_not_believed_beside_the_next_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the control: a reply tells the time that its step was computed with."""
    assert overlap(behind=0.09) < 0
    monkeypatch.setattr(TableStepper, "_adjust", CasStepper._adjust)
    assert overlap(behind=0.0) < 0
    assert overlap(behind=0.09) > 0.05


def test_the_pushed_window_is_longer_by_the_slack() -> None:
    """As a lease is: when it is written, the server's clock may be ahead so far."""
    record: Doorman | None = None
    seat: MutexRecord | None = None
    claims = [Claim(ticket, micros(30.0)) for ticket in ("a", "b")]
    for claim, name in zip(claims, ("p1", "p2"), strict=True):
        command = Acquire(
            (claim,), Mode.WRITE, client_id=name, may_queue=True, push=True
        )
        step = transition(record, seat, command, 1_000, 0)
        record, seat = step.record, step.seat
    step = transition(record, seat, Release("a"), 2_000, 0)
    longer = with_longer_push(step, MIN_SLACK)
    assert step.pushed is not None
    assert step.pushed.expires is not None
    assert longer.pushed is not None
    assert longer.pushed.expires == step.pushed.expires + MIN_SLACK
    assert longer.record.grants == (longer.pushed,)
    assert longer.record.queue[0].claim_until == longer.pushed.expires
    assert longer.seat is not None
    assert longer.seat.expires == longer.pushed.expires
    assert with_longer_push(step, 0) == step
