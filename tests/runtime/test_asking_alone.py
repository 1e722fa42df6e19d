"""A task that asks alone does what it would do if it joined its queue.

Random histories run in two worlds. In one, tasks ask alone where that is allowed, by
acquires prepared for all of them, and the confirmation of a pushed grant is prepared
while its task waits; in the other, each task joins, and nothing is prepared. Both send
the same commands, and the same becomes of all tasks. The controls break one rule each
of when a shortcut may be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aiorwlock_remote.core.commands import (
    FULL,
    Acquire,
    Claim,
    Command,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
    Reply,
    Waiting,
    Withdrawn,
)
from aiorwlock_remote.core.mode_queue import ModeQueue
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant, proof_of
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import BackendUnavailable, BadRecord, TooManyWaiters
from aiorwlock_remote.ports import Pending, StoreSettings
from aiorwlock_remote.runtime import wait_queue
from aiorwlock_remote.runtime.lease import AcquireRequest, LeaseTerms
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import Attempt, WaitQueue
from tests.examples_of_histories import many
from tests.runtime.test_wait_queue_random_histories import ORDER, SECONDS, FakeStore

LEASE = LeaseTerms(30.0)
PATIENCE = 5.0


class World:
    """The queue of one process, with its own store that answers on demand."""

    def __init__(self, poll_policy: PollPolicy, *, alone: bool) -> None:
        self.fake = FakeStore(poll_policy)
        client = StoreClient(self.fake, StoreSettings("here"))  # type: ignore[arg-type]
        client.store = self.fake  # type: ignore[assignment]
        self.client, self.queues = client, client.queues
        self.queue: WaitQueue = self.queues.queue(ORDER)
        if not alone:
            self.queue.asks_alone = self.queue.unused = False
            self.queue._prepare = lambda: None  # type: ignore[method-assign]
        self.attempts: list[Attempt] = []
        self.sent: list[Command] = []
        self.outcomes: dict[str, object] = {}

    def ask(self, claim: Claim, mode: Mode, limit: int | None) -> None:
        now = self.fake.clock.seconds
        request = AcquireRequest(ORDER, mode, Policy.FAIR, LEASE, max_waiters=limit)
        attempt = Attempt(claim, request, now, now + PATIENCE)
        self.attempts.append(attempt)
        if self.queue.unused:
            self.queue.ask_alone(attempt)
            return
        try:
            self.queue.join(attempt.new_waiter(), mode)
        except TooManyWaiters:
            self.attempts.remove(attempt)
            self.outcomes[claim.ticket] = "full"

    def interrupt(self, index: int) -> None:
        """Cancel a task, whose grant may have come already."""
        attempt = self.attempts.pop(index)
        self.queue.leave(self.queue.joined(attempt), attempt.request.mode)
        self.outcomes[attempt.claim.ticket] = "cancelled"

    def run(self) -> None:
        """Let the first task go on whose attempt is over."""
        attempt = next((one for one in self.attempts if one.done()), None)
        if attempt is None:
            return
        self.attempts.remove(attempt)
        grant, sent_at, error = attempt.grant, attempt.since, None
        if attempt.waiter is not None:
            waiter = attempt.waiter
            grant, sent_at, error = waiter.grant, waiter.sent_at, waiter.error
        ticket = attempt.claim.ticket
        self.outcomes[ticket] = error if grant is None else (grant, sent_at)
        if grant is None and isinstance(error, BackendUnavailable):
            assert attempt.waiter is not None
            self.queue.withdraw(attempt.waiter, attempt.request.mode).log_failure()

    def said(self, index: int) -> object:
        """Return what a task reports that gives up because of its timeout."""
        attempt = self.attempts[index]
        if attempt.done():
            return None
        return self.queue.said(self.queue.joined(attempt), attempt.request.mode)

    def state(self) -> object:
        queue, throttle = self.queue, self.client.throttle
        return (
            [command for command, _ in self.fake.under_way],
            [(one.claim.ticket, one.done()) for one in self.attempts],
            {ticket: repr(outcome) for ticket, outcome in self.outcomes.items()},
            (queue.waiting, queue.idle, queue.due),
            (throttle._in_flight, self.client.delays.longest),
            dict(self.client.wakeups),
        )


class TwoWorlds(RuleBasedStateMachine):
    """The same history where tasks ask alone, and where each joins its queue."""

    poll_policy = PollPolicy()

    def __init__(self) -> None:
        super().__init__()
        self.worlds = [World(self.poll_policy, alone=alone) for alone in (True, False)]
        self.tickets = 0
        self.alone = self.worlds[0]

    def both(self, event: Callable[[World], object]) -> None:
        first, second = map(event, self.worlds)
        assert first == second

    @rule(mode=st.sampled_from(LOCK_MODES), limit=st.sampled_from([None, None, 3]))
    def asks(self, mode: Mode, limit: int | None) -> None:
        self.tickets += 1
        claim = Claim(f"t{self.tickets}", 30_000_000)
        self.both(lambda world: world.ask(claim, mode, limit))

    @rule(mode=st.sampled_from(LOCK_MODES), data=st.data())
    def asks_and_is_answered(self, mode: Mode, data: st.DataObject) -> None:
        """As in most acquires: nothing else happens before the answers."""
        self.asks(mode, None)
        while self.alone.fake.under_way:
            self.is_answered(data)

    @precondition(lambda self: self.alone.attempts)
    @rule(data=st.data())
    def is_interrupted(self, data: st.DataObject) -> None:
        index = self._one(data)
        self.both(lambda world: world.interrupt(index))

    @precondition(lambda self: any(one.done() for one in self.alone.attempts))
    @rule(interrupted=st.sampled_from([False, False, True]))
    def goes_on(self, *, interrupted: bool) -> None:
        if interrupted:
            done = [one.done() for one in self.alone.attempts].index(True)
            self.both(lambda world: world.interrupt(done))
        else:
            self.both(World.run)

    @precondition(lambda self: self.alone.attempts)
    @rule(data=st.data())
    def reports(self, data: st.DataObject) -> None:
        index = self._one(data)
        self.both(lambda world: world.said(index))

    @rule(number=st.integers(1, 20))
    def is_released(self, number: int) -> None:
        ticket = f"t{number}"
        if isinstance(self.alone.outcomes.get(ticket), tuple):
            self.both(lambda world: world.queue.release(ticket).log_failure())

    @rule(seconds=SECONDS)
    def a_wake_up_arrives(self, seconds: float) -> None:
        self.both(lambda world: world.queues.wake(ORDER, seconds))

    @rule(data=st.data(), ends=st.sampled_from([-1.0, 0.1, 0.4]))
    def a_message_arrives(self, data: st.DataObject, ends: float) -> None:
        tickets = [one.claim.ticket for one in self.alone.attempts]
        ticket = data.draw(st.sampled_from([*tickets, "another"]))
        since = self.alone.fake.now
        expires = since + round(ends * 1e6)
        proof = proof_of(ticket, since, expires, 1)
        message = PushedGrant(1, since, expires, proof)
        self.both(lambda world: world.queues.wake(ORDER, 0.0, message))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        def pass_time(world: World) -> None:
            world.fake.clock.seconds += seconds
            world.queues._fire()

        self.both(pass_time)

    @precondition(lambda self: self.alone.fake.under_way)
    @rule(data=st.data())
    def is_answered(self, data: st.DataObject) -> None:
        command, _ = self.alone.fake.under_way[0]
        self._deliver(self._answer(command, data))

    def _deliver(self, answer: Reply | Exception) -> None:
        def deliver(world: World) -> None:
            _, pending = world.fake.under_way.pop(0)
            if isinstance(answer, Exception):
                pending.set_exception(answer)
            else:
                pending.set_result(answer)

        self.both(deliver)

    @invariant()
    def nothing_differs(self) -> None:
        first, second = (world.state() for world in self.worlds)
        assert first == second

    @invariant()
    def what_is_unused_is_as_at_the_beginning(self) -> None:
        queue = self.alone.queue
        if queue.unused:
            assert queue.idle
            assert all(mode.unused for mode in self.worlds[1].queue._modes)

    def _one(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.alone.attempts) - 1))

    def _answer(self, command: Command, data: st.DataObject) -> Reply | Exception:
        error = data.draw(st.sampled_from([*[None] * 6, "away", "damaged"]))
        if error is not None:
            return (BackendUnavailable if error == "away" else BadRecord)(what=error)
        if isinstance(command, Acquire):
            return self._acquired(command, data)
        if isinstance(command, Release):
            then = tuple(self._acquired(one, data) for one in command.then)
            return Released(held=True, then=then)  # type: ignore[arg-type]
        return Withdrawn()

    def _acquired(self, command: Acquire, data: st.DataObject) -> Reply:
        now = self.alone.fake.now
        kinds = ["granted"] * 4 + ["older", "waiting", "none"]
        kinds += ["placed"] if command.more else []
        kinds += ["full"] if command.max_waiters is not None else []
        kinds = ["granted", "gone"] if command.confirms else kinds
        match data.draw(st.sampled_from(kinds)):
            case "full":
                return Refused(FULL)
            case "gone":
                return NotHeld()
            case "waiting":
                ahead = data.draw(st.sampled_from([0, 0, 300]))
                after = data.draw(st.none() | st.just(700_000))
                return Waiting(ahead, after, now=now)
            case kind:
                since = now - 100_000 if kind == "older" else now
                claims = () if kind == "none" else command.claims
                grants = tuple(one.grant(command.mode, 1, since) for one in claims)
                return Granted(grants, now, placed=kind in ("placed", "none"))


class TwoWorldsWithMessages(TwoWorlds):
    """The same at a store that pushes grants."""

    poll_policy = PollPolicy(claim_window=0.3, pushes=True)


class TwoWorldsThatWait(TwoWorldsWithMessages):
    """The same, but writers mostly wait until a message comes."""

    @precondition(lambda self: not self.alone.fake.under_way)
    @rule(other=st.booleans())
    def writers_wait(self, *, other: bool) -> None:
        self.asks(Mode.WRITE, None)
        if self.alone.fake.under_way:
            self._deliver(Waiting(0, None, now=self.alone.fake.now))
        if other:
            self.asks(Mode.WRITE, None)


@pytest.fixture(autouse=True)
def _without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_queue, "random", lambda: 0.5)


MACHINES = pytest.mark.parametrize(
    "machine", [TwoWorlds, TwoWorldsWithMessages, TwoWorldsThatWait]
)


def tell(machine: type[TwoWorlds], histories: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=histories, stateful_step_count=30),
    )


@MACHINES
def test_asking_alone_is_as_joining(machine: type[TwoWorlds]) -> None:
    tell(machine, many(130))


def _asks_beside_others(patch: pytest.MonkeyPatch) -> None:
    """A task asks alone although others wait."""
    always = property(lambda queue: queue.asks_alone, _ignore)
    patch.setattr(WaitQueue, "unused", always, raising=False)


def _stays_alone(patch: pytest.MonkeyPatch) -> None:
    """A task stays out of the queue although another one joins."""
    sound = WaitQueue.join

    def join(self: WaitQueue, *waiter: Any) -> None:  # noqa: ANN401 - passed on
        alone, self._alone = self._alone, None
        sound(self, *waiter)
        self._alone = alone

    patch.setattr(WaitQueue, "join", join)


def _misses_wake_ups(patch: pytest.MonkeyPatch) -> None:
    """A wake-up during the request is not noted."""
    sound = WaitQueue.wake

    def wake(self: WaitQueue, *cause: Any) -> None:  # noqa: ANN401 - passed on
        if self._alone is None:
            sound(self, *cause)

    patch.setattr(WaitQueue, "wake", wake)


def _takes_older_grants(patch: pytest.MonkeyPatch) -> None:
    """A grant that an earlier request has got counts from the later one."""

    def only_grant(reply: Reply) -> object:
        if isinstance(reply, Granted) and len(reply.grants) == 1:
            return reply.grants[0]
        return None

    patch.setattr(wait_queue, "_only_grant", only_grant)


def _keeps_grants(patch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled as its grant has come does not give it back."""
    sound = WaitQueue.joined

    def joined(self: WaitQueue, attempt: Attempt) -> Any:  # noqa: ANN401 - as it has it
        waiter = sound(self, attempt)
        if attempt.grant is not None:
            waiter.grant = None
        return waiter

    patch.setattr(WaitQueue, "joined", joined)


def _forgets_the_reply(patch: pytest.MonkeyPatch) -> None:
    """A task that joins during its request does not get the answer."""
    sound = WaitQueue._answered_alone

    def answered(self: WaitQueue, attempt: Attempt, *sent: Any) -> None:  # noqa: ANN401 - passed on
        if attempt.waiter is None:
            sound(self, attempt, *sent)

    patch.setattr(WaitQueue, "_answered_alone", answered)


def _confirms_as_prepared(patch: pytest.MonkeyPatch) -> None:
    """A confirmation is sent for another task, or although others have joined."""
    patch.setattr(ModeQueue, "_ready_confirmation", lambda queue: queue._confirmation)


def _sends_an_older_claim(patch: pytest.MonkeyPatch) -> None:
    """A prepared acquire has the claim with which it was prepared."""

    def prepared_acquire(
        self: FakeStore, resource: Resource, acquire: Acquire
    ) -> Callable[[Claim], Pending[Reply]]:
        return lambda _: self.step(resource, acquire)

    patch.setattr(FakeStore, "prepared_acquire", prepared_acquire)


def _releases_an_older_ticket(patch: pytest.MonkeyPatch) -> None:
    """A prepared release has the ticket that was released first."""

    def prepared_release(
        self: FakeStore, resource: Resource
    ) -> Callable[[str], Pending[Reply]]:
        first: list[str] = []

        def send(ticket: str) -> Pending[Reply]:
            first.append(ticket)
            return self.step(resource, Release(first[0]))

        return send

    patch.setattr(FakeStore, "prepared_release", prepared_release)


def _keeps_older_options(patch: pytest.MonkeyPatch) -> None:
    """A prepared acquire has the options with which it was prepared."""
    sound = ModeQueue.only_request

    def only_request(self: ModeQueue, claim: Claim, *options: Any) -> Acquire:  # noqa: ANN401 - passed on
        return self._only or sound(self, claim, *options)

    patch.setattr(ModeQueue, "only_request", only_request)


def _ignore(_: WaitQueue, __: object) -> None:
    pass


CONTROLS = (
    _asks_beside_others,
    _stays_alone,
    _misses_wake_ups,
    _takes_older_grants,
    _keeps_grants,
    _forgets_the_reply,
    _confirms_as_prepared,
    _sends_an_older_claim,
    _releases_an_older_ticket,
    _keeps_older_options,
)


@pytest.mark.parametrize("breaks", CONTROLS, ids=lambda breaks: breaks.__name__[1:])
def test_a_broken_shortcut_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    waits = breaks is _confirms_as_prepared
    machine = TwoWorldsThatWait if waits else TwoWorldsWithMessages
    noticed = settings(
        # Ids are random: one run needs more examples than another.
        max_examples=1000,
        stateful_step_count=30,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever breaks first
        run_state_machine_as_test(machine, settings=noticed)
