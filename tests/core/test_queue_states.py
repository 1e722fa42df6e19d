"""The table of a queue's states, and what random histories of a queue reach of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest

from aiorwlock_remote.core.commands import (
    FULL,
    Acquire,
    Answer,
    Claim,
    Granted,
    NotHeld,
    Refused,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.pushed import PushedGrant, proof_of
from aiorwlock_remote.core.queue_states import (
    TRANSITIONS,
    UNDER_WAY,
    Entry,
    Event,
    IllegalEvent,
    Request,
    States,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy

Step = tuple[States, Event, States]

LEASE = 30_000_000
HISTORIES = 1_000
"""So many reach the rarest step of the table some twenty times."""


def legal() -> set[Step]:
    """Return each step of the table."""
    return {
        (before, event, after)
        for before, events in TRANSITIONS.items()
        for event, after in events.items()
    }


class History:
    """A queue of writers at a store that pushes grants, and random events.

    Each reply is one that a store can give: a confirmation is granted or no longer
    held, and only an acquire with a limit is refused. A message is the store's, so it
    comes to the first task of an entry.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.queue = ModeQueue("g", Mode.WRITE, PollPolicy(pushes=True))
        self.under_way: Acquire | None = None
        self.decided: list[Waiter] = []
        self.joined = 0
        self.now = 1.0

    def run(self, events: int) -> None:
        queue = self.queue
        for _ in range(events):
            self.now += 0.001
            self.random.choice(self._possible())()
            sent = self.under_way is not None
            assert (queue._request in UNDER_WAY) is bool(queue._asked) is sent
            assert queue.waiters or queue._entry is not Entry.PLACED or sent
            assert queue.waiters or not queue.held_back
            waits = sent or queue.due is not None or queue.held_back
            assert waits or not queue.waiters

    def _possible(self) -> list[Callable[[], None]]:
        events = [self.joins, self.joins, self.is_woken, self.polls]
        if self.queue.waiters:
            events += [self.leaves, self.leaves, self.hears, self.hears]
        if self.decided:
            events.append(self.leaves_late)
        if self.under_way is not None:
            events += [self.is_answered] * 3 + [self.fails] * 2
        return events

    def joins(self) -> None:
        self.joined += 1
        limit = self.random.choice([None, None, 3])
        waiter = Waiter(Claim(f"t{self.joined}", LEASE), Policy.FAIR, limit)
        waiter.until = self.random.choice([0.0, 1e6])
        hold = self.random.random() < 0.3
        self._sends(self.queue.join(waiter, hold=hold))

    def is_woken(self) -> None:
        self._sends(self.queue.wake())

    def polls(self) -> None:
        self._sends(self.queue.ask())

    def leaves(self) -> None:
        waiter = self.random.choice(list(self.queue.waiters))
        self.decided.append(waiter)
        self._sends(self.queue.leave(waiter))

    def leaves_late(self) -> None:
        """It was turned away, and is cancelled before it runs."""
        self._sends(self.queue.leave(self.random.choice(self.decided)))

    def hears(self) -> None:
        now = self._store_now()
        ticket = self.queue.waiters[0].ticket
        ends = now + 300_000
        message = PushedGrant(1, now, ends, proof_of(ticket, now, ends, 1))
        self._tell(self.queue.pushed(message, self.now))

    def is_answered(self) -> None:
        assert self.under_way is not None
        answer = self._answer(self.under_way)
        self.under_way = None
        sent_at, chance = self.now - 0.0005, self.random.random()
        self._tell(self.queue.answered(answer, sent_at, self.now, chance))

    def fails(self) -> None:
        self.under_way = None
        repeat = self.random.random() < 0.5
        if not repeat and self.random.random() < 0.2:
            for waiter in self.queue.waiters:  # as the wait queue does for good
                waiter.replied = False
        chance = self.random.random()
        self._tell(self.queue.failed(self.now, chance, repeat=repeat))

    def _answer(self, acquire: Acquire) -> Answer | NotHeld:
        now = self._store_now()
        kinds = ["placed", "not placed"]
        kinds += ["not held"] if acquire.confirms else ["waiting", "waiting"]
        if acquire.max_waiters is not None:
            kinds.append("full")
        kind = self.random.choice(kinds)
        if kind == "not held":
            return NotHeld()
        if kind == "waiting":
            return Waiting(1, None, (), now)
        if kind == "full":
            return Refused(FULL)
        grant = acquire.claims[0].grant(Mode.WRITE, 1, now)
        return Granted((grant,), now, placed=kind == "placed")

    def _store_now(self) -> int:
        return round(self.now * 1e6)

    def _tell(self, effects: Effects | None) -> None:
        if effects is not None:
            self.decided += effects.served + effects.turned_away
            self._sends(effects.send)

    def _sends(self, command: Acquire | Withdraw | None) -> None:
        if isinstance(command, Acquire):
            assert self.under_way is None, "two requests at a time"
            self.under_way = command


def reached(monkeypatch: pytest.MonkeyPatch) -> set[Step]:
    """Return the steps of random histories."""
    steps: set[Step] = set()

    move = ModeQueue._move

    def noted(queue: ModeQueue, event: Event) -> None:
        before = queue._entry, queue._request
        move(queue, event)
        steps.add((before, event, (queue._entry, queue._request)))

    monkeypatch.setattr(ModeQueue, "_move", noted)
    for seed in range(HISTORIES):
        History(seed).run(60)
    return steps


def test_random_histories_reach_each_step_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that is not in the table would raise ``IllegalEvent``."""
    assert reached(monkeypatch) == legal()


@pytest.mark.parametrize("step", sorted(legal()), ids=str)
def test_a_missing_step_is_noticed(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    before, event, _ = step
    monkeypatch.delitem(TRANSITIONS[before], event)
    with pytest.raises(IllegalEvent):
        reached(monkeypatch)


def test_an_illegal_event_raises_and_changes_nothing() -> None:
    """Whatever it is, and whatever the states are."""
    for states in product(Entry, Request):
        for event in set(Event) - set(TRANSITIONS.get(states, ())):
            queue = ModeQueue("g", Mode.WRITE, PollPolicy())
            queue._entry, queue._request = states
            with pytest.raises(IllegalEvent, match=str(states[0])):
                queue._move(event)
            assert (queue._entry, queue._request) == states


def test_a_reply_without_a_request_is_illegal() -> None:
    queue = ModeQueue("g", Mode.WRITE, PollPolicy())
    with pytest.raises(IllegalEvent):
        queue.answered(Waiting(1, None), 1.0, 1.1, 0.5)
    assert queue.idle
    assert queue._answers == 0


def test_each_pair_is_reached_and_left() -> None:
    """From any of them the queue becomes free again."""
    free = (Entry.NONE, Request.IDLE)
    assert {after for _, _, after in legal()} == set(TRANSITIONS)
    for states in TRANSITIONS:
        seen, todo = {states}, [states]
        while todo:
            found = set(TRANSITIONS[todo.pop()].values()) - seen
            seen |= found
            todo += found
        assert seen == set(TRANSITIONS), states
        assert free in seen
