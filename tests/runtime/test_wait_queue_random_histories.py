"""Each waiting task is asked for, or will be: the queue in any order of events.

Time, the store's answers and the loop's tasks are the test's own. Nothing is awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import (
    FULL,
    Acquire,
    Answer,
    Claim,
    Command,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
    Waiting,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.pushed import PushedGrant, proof_of
from aiorwlock_remote.core.queue_states import CONFIRMING
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, TooManyWaiters
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue
from tests.examples_of_histories import many
from tests.fixed_clock import StandingClock

ORDER = resource("order", 1)
SECONDS = st.sampled_from([0.0, 0.1, 0.7, 1.5, 3.0])


class FakeStore:
    """A store that answers on demand, and a loop that runs nothing."""

    def __init__(self, poll_policy: PollPolicy) -> None:
        self.poll_policy = poll_policy
        self.under_way: list[tuple[Command, Pending[Any]]] = []
        self.clock = StandingClock()

    @property
    def now(self) -> int:
        """The store's clock, in microseconds."""
        return round(self.clock.seconds * 1e6)

    def step(self, resource: Resource, command: Command) -> Pending[Any]:
        assert resource == ORDER
        answer: Pending[Any] = Pending()
        self.under_way.append((command, answer))
        return answer

    def prepared(
        self, resource: Resource, command: Command
    ) -> Callable[[], Pending[Any]]:
        return partial(self.step, resource, command)

    def prepared_acquire(
        self, resource: Resource, acquire: Acquire
    ) -> Callable[[Claim], Pending[Any]]:
        return lambda claim: self.step(resource, replace(acquire, claims=(claim,)))

    def prepared_release(self, resource: Resource) -> Callable[[str], Pending[Any]]:
        return lambda ticket: self.step(resource, Release(ticket))

    def watch(self, resource: Resource) -> None:
        pass

    def unwatch(self, resource: Resource) -> None:
        pass

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        raise NotImplementedError

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        pass


class WaitQueueStateMachine(RuleBasedStateMachine):
    """One process: its readers, its writers, and what it hears."""

    poll_policy = PollPolicy()

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeStore(self.poll_policy)
        client = StoreClient(self.fake, StoreSettings("here"))  # type: ignore[arg-type]
        client.store = self.fake  # type: ignore[assignment]
        self.queues = client.queues
        self.queue: WaitQueue = self.queues.queue(ORDER)
        self.waiting: list[tuple[TaskWaiter, Mode]] = []
        self.inside: list[tuple[TaskWaiter, Mode]] = []
        self.tickets = 0

    @rule(mode=st.sampled_from(LOCK_MODES), limit=st.sampled_from([None, None, 3]))
    def joins(self, mode: Mode, limit: int | None) -> None:
        self.tickets += 1
        claim = Claim(f"t{self.tickets}", 30_000_000)
        waiter = TaskWaiter(claim, Policy.FAIR, limit)
        self.waiting.append((waiter, mode))
        try:
            self.queue.join(waiter, mode)
        except TooManyWaiters:
            self.waiting.remove((waiter, mode))
        self._sort()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        waiter, mode = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove((waiter, mode))
        self.queue.leave(waiter, mode)
        self._sort()

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def releases(self, data: st.DataObject) -> None:
        waiter, mode = data.draw(st.sampled_from(self.inside))
        self.inside.remove((waiter, mode))
        self.queue.release(waiter.ticket).log_failure()
        self._sort()

    @rule(seconds=SECONDS)
    def a_wake_up_arrives(self, seconds: float) -> None:
        self.queues.wake(ORDER, seconds)
        self._sort()

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.fake.clock.seconds += seconds
        self.queues._fire()
        self._sort()

    @precondition(lambda self: self.fake.under_way)
    @rule(data=st.data())
    def is_answered(self, data: st.DataObject) -> None:
        command, pending = self.fake.under_way.pop(0)
        error = data.draw(st.sampled_from([None, None, None, "away", "damaged"]))
        if error == "away":
            pending.set_exception(BackendUnavailable(what="away"))
        elif error == "damaged":
            pending.set_exception(BadRecord(what="damaged"))
        elif isinstance(command, Acquire) and command.confirms:
            pending.set_result(self._confirmed(command, data))
        elif isinstance(command, Acquire):
            pending.set_result(self._answer(command, data))
        elif isinstance(command, Release):
            then = tuple(self._answer(carried, data) for carried in command.then)
            pending.set_result(Released(held=True, then=then))
        else:
            pending.set_result(Withdrawn())
        self._sort()

    @invariant()
    def nobody_is_forgotten(self) -> None:
        for lane in self.queue._modes:
            asks = lane._asked or lane.due is not None or lane.held_back
            assert asks or not lane.waiters
        # The reply to come lets them follow.
        readers, writers = self.queue._readers, self.queue._writers
        assert readers._asked or not (writers.held_back or readers._barred)
        due = self.queue.due
        if due is not None:
            alarm = self.queues._armed[self.queue]
            assert alarm <= due
            assert (alarm, self.queue) in [
                (at, who) for at, _, who in self.queues._alarms
            ]
        assert len(self.waiting) == self.queue.waiting

    def teardown(self) -> None:
        """All get in, one after the other, by nothing but polls."""
        for _ in range(10 * self.tickets):
            while self.fake.under_way:
                self._grant_all(*self.fake.under_way.pop(0))
            while self.inside:
                waiter, _ = self.inside.pop()
                self.queue.release(waiter.ticket).log_failure()
            self.fake.clock.seconds += 2
            self.queues._fire()
        assert self.waiting == []

    def _answer(self, command: Acquire, data: st.DataObject) -> Answer:
        kinds = ["granted", "waiting"]
        if command.max_waiters is not None:
            kinds.append("full")
        kind = data.draw(st.sampled_from(kinds))
        if kind == "full":
            return Refused(FULL)
        if kind == "waiting":
            retry = data.draw(st.none() | SECONDS)
            wait = None if retry is None else int(retry * 1e6)
            return Waiting(0, wait, now=self.fake.now)
        let_in = data.draw(st.integers(0, len(command.claims)))
        return self._granted(command, let_in, placed=data.draw(st.booleans()))

    def _confirmed(self, command: Acquire, data: st.DataObject) -> Answer | NotHeld:
        if data.draw(st.sampled_from(["held", "gone"])) == "gone":
            return NotHeld()
        fence = data.draw(st.sampled_from([1, 2]))
        grant = command.claims[0].grant(command.mode, fence, self.fake.now)
        return Granted((grant,), self.fake.now, command.more > 0)

    def _granted(self, command: Acquire, let_in: int, *, placed: bool) -> Granted:
        now = self.fake.now
        grants: tuple[Grant, ...] = tuple(
            claim.grant(command.mode, 1, now) for claim in command.claims[:let_in]
        )
        return Granted(grants, now, placed)

    def _grant_all(self, command: Command, pending: Pending[Any]) -> None:
        def granted(asked: Acquire) -> Granted:
            return self._granted(asked, len(asked.claims), placed=asked.more > 0)

        if isinstance(command, Acquire):
            pending.set_result(granted(command))
        elif isinstance(command, Release):
            pending.set_result(Released(True, then=tuple(map(granted, command.then))))
        else:
            pending.set_result(Withdrawn())
        self._sort()

    def _sort(self) -> None:
        """Who has got in, and who has been turned away."""
        for one in list(self.waiting):
            waiter, _ = one
            if waiter.ready.done():
                self.waiting.remove(one)
                if waiter.grant is not None:
                    self.inside.append(one)


class PushedWaitQueueStateMachine(WaitQueueStateMachine):
    """The same, where the store pushes grants: messages come in time, late, doubled and
    forged.
    """

    poll_policy = PollPolicy(claim_window=0.3, pushes=True)

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[PushedGrant] = []

    @rule(data=st.data(), ends=st.sampled_from([-1.0, 0.1, 0.4]))
    def hears(self, data: st.DataObject, ends: float) -> None:
        writers = [w.ticket for w, mode in self.waiting if mode is Mode.WRITE]
        ticket = data.draw(st.sampled_from([*writers, "another"]))
        since, expires = self.fake.now, self.fake.now + round(ends * 1e6)
        proof = proof_of(ticket, since, expires, 1)
        self._hear(PushedGrant(1, since, expires, proof))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def hears_again(self, data: st.DataObject) -> None:
        self._hear(data.draw(st.sampled_from(self.sent)))

    @invariant()
    def one_request_confirms(self) -> None:
        """No writer enters by a message while another request is under way."""
        writers = self.queue._writers
        if writers._request is CONFIRMING:
            (first,) = writers._asked
            assert first.grant is not None
            assert first not in writers.waiters

    def _hear(self, message: PushedGrant) -> None:
        self.sent.append(message)
        self.queues.wake(ORDER, 0.0, message)
        self._sort()


TestHistories = WaitQueueStateMachine.TestCase
TestHistories.settings = settings(max_examples=many(130), stateful_step_count=30)

TestPushedHistories = PushedWaitQueueStateMachine.TestCase
TestPushedHistories.settings = settings(max_examples=many(130), stateful_step_count=30)
