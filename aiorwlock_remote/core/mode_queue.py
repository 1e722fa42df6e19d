"""The waiting tasks of one client at one resource in one mode, without I/O.

However many tasks of a client wait, the store sees one queue entry and one request at a
time. A ``ModeQueue`` is informed of each event (a task joins or leaves, a reply or a
wake-up comes, time passes) and returns the request to send. The runtime sends it
(``runtime/wait_queue.py``).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from aiorwlock_remote.core.commands import (
    FULL,
    Acquire,
    Answer,
    Claim,
    Granted,
    Refused,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant, describe_grants
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import MICROS, PollPolicy, back_off, micros, next_poll

MAX_CLAIMS_PER_ACQUIRE = 500


@dataclass(slots=True, eq=False)
class Waiter:
    """A task in a ``ModeQueue``, and the grant it got.

    Attributes:
        sent_at: Local monotonic time (s) from which the lease of the grant counts: when
            its request was sent. If the grant came from an earlier request, whose reply
            was lost, a time no later than that grant.
        last_reply: What the store replied last while the task waited; None if nothing.
        until: Local monotonic time (s) until which a request that failed without effect
            is repeated for a task that has no queue entry yet.
        unheard: If the task joined while a request was under way, how many replies the
            queue had received by then; otherwise -1.
    """

    claim: Claim
    policy: Policy
    max_waiters: int | None = None
    grant: Grant | None = None
    sent_at: float = 0.0
    last_reply: Waiting | None = None
    until: float = -math.inf
    unheard: int = -1

    @property
    def ticket(self) -> str:
        return self.claim.ticket


@dataclass(slots=True, eq=False)
class Effects:
    """What to do after a reply or failure: send a request, if any, and wake tasks.

    The tasks in ``served`` have a grant; those in ``turned_away`` stop waiting without
    one.
    """

    served: list[Waiter] = field(default_factory=list[Waiter])
    turned_away: list[Waiter] = field(default_factory=list[Waiter])
    send: Acquire | Withdraw | None = None


class ModeQueue:
    """First-in, first-out queue of one client's tasks for one mode of one resource.

    A queue of writers asks for one ticket at a time, one of readers for all its readers
    at once. It reads no clock. Invariants, each with the test in
    ``tests/core/test_mode_queue.py`` that fails without it:

    * At most one acquire is under way; ``_asked`` are its tasks
      (test_one_request_at_a_time).
    * Tasks are served in the order they joined; readers ask together
      (test_whatever_happens_nothing_is_left_behind, test_readers_ask_together).
    * A ticket that may have reached the store is withdrawn when its task leaves:
      ``_asked``, and ``_unsure`` after a lost reply
      (test_who_leaves_after_a_lost_answer_is_withdrawn).
    * The store has at most one entry for all tasks, and the last task to leave gives
      the entry back: ``_placed``, and ``_perhaps_placed`` after a lost reply
      (test_a_place_that_may_have_been_made_is_given_back,
      test_a_place_made_for_tasks_that_left_is_given_back).
    * A withdrawal that follows an acquire under way undoes the entry this acquire may
      make: ``_dropped`` (test_leaving).
    * A wake-up while a request is under way is not lost: ``_woken`` asks again at once
      (test_who_waits_looks_again_when_told_or_at_its_poll).
    * A lease counts from the request that the store carried out
      (test_a_grant_whose_answer_was_lost_is_anchored_at_its_own_request).
    * ``due`` is None when no task waits (test_nobody_looks_for_those_who_left).
    """

    def __init__(self, client_id: str, mode: Mode, pace: PollPolicy) -> None:
        self.waiters: deque[Waiter] = deque()
        self.due: float | None = None
        """Local monotonic time of the next poll, in seconds; None: no poll is due."""
        self.mode: Mode = mode
        self._client_id = client_id
        self._pace = pace
        self._entry_ttl = micros(pace.entry_ttl)
        self._claim_window = micros(pace.claim_window)
        self._asked: tuple[Waiter, ...] = ()
        self._unsure: set[Waiter] = set()
        self._placed = False
        self._perhaps_placed = False
        self._last_answer: Waiting | Granted | None = None
        self._answers = 0
        self._woken = False
        self._dropped = False
        self._failures = 0

    @property
    def idle(self) -> bool:
        return not self.waiters and not self._asked

    @property
    def watching(self) -> bool:
        """True if tasks wait and have an entry in the store, so wake-ups come."""
        return self._placed and bool(self.waiters)

    def join(self, waiter: Waiter) -> Acquire | None:
        """Add a task to the queue; return the request to send, or None."""
        self.waiters.append(waiter)
        if self._placed and not self._asked:
            # The entry in the store is already the new task's, too. Without a last
            # reply an outage would turn the task away, while those before it wait on
            # (test_who_joins_a_place_has_it).
            waiter.last_reply = self._describe_last_answer()
            return None
        waiter.unheard = self._answers
        return None if self._asked else self.ask()

    def last_reply_to(self, waiter: Waiter) -> Waiting | None:
        """Return the store's last reply; None if none came since this task joined."""
        # A waiter that joins a queue with an entry, and leaves before the next request,
        # must not report that the store did not reply
        # (test_who_joins_later_is_told_what_the_store_said).
        if self._asked and waiter.unheard == self._answers:
            return None
        return self._describe_last_answer()

    def leave(self, waiter: Waiter) -> Withdraw | None:
        """Remove a task that stops waiting; return the withdrawal to send, or None."""
        asked = waiter in self._asked or waiter in self._unsure
        self._unsure.discard(waiter)
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        keep = bool(self.waiters)
        if not keep:
            self.due = None
        tickets = (waiter.ticket,) if asked else ()
        placed = self._placed or self._perhaps_placed or bool(self._asked)
        if not asked and (keep or not placed):
            return None
        if not keep:
            self._placed, self._perhaps_placed = False, False
            self._dropped = bool(self._asked)
        return Withdraw(self._client_id, self.mode, tickets, keep=keep)

    def wake(self) -> Acquire | None:
        """Note a wake-up, even a spurious one; return the acquire to send, or None."""
        if self._asked:
            self._woken = True
            return None
        return self.ask()

    def ask(self) -> Acquire | None:
        """Return the acquire to send; None if no task waits or one is under way."""
        if not self.waiters or self._asked:
            return None
        first = self.waiters[0]
        if self.mode is Mode.WRITE or len(self.waiters) == 1:
            self._asked = (first,)
            claims: tuple[Claim, ...] = (first.claim,)
        else:
            # One request has one policy; readers of another policy ask next.
            alike = [w for w in self.waiters if w.policy is first.policy]
            self._asked = tuple(alike[:MAX_CLAIMS_PER_ACQUIRE])
            claims = tuple(w.claim for w in self._asked)
        self.due, self._woken, self._dropped = None, False, False
        return Acquire(
            claims,
            self.mode,
            first.policy,
            self._client_id,
            may_queue=True,
            more=len(self.waiters) - len(self._asked),
            waiting=len(self.waiters),
            max_waiters=None if self._placed else first.max_waiters,
            entry_ttl=self._entry_ttl,
            claim_window=self._claim_window,
        )

    def answered(
        self, answer: Answer, sent_at: float, now: float, random: float
    ) -> Effects:
        """Process the store's reply to the request under way.

        ``sent_at`` (just before the request was sent) and ``now``: local monotonic
        seconds. ``random``, in [0, 1), is the jitter of the next poll.
        """
        asked, self._asked, self._failures = self._asked, (), 0
        self._answers += 1
        # This reply covers what an earlier, lost one may have granted.
        if self._unsure:
            self._unsure.difference_update(asked)
        self._perhaps_placed = False
        effects = Effects()
        if isinstance(answer, Granted):
            self._placed = answer.placed and not self._dropped
            grants = {g.ticket: g for g in answer.grants}
            for waiter in asked:
                grant = grants.get(waiter.claim.ticket)
                if grant is not None and self._remove(waiter):
                    waiter.grant, waiter.sent_at = grant, sent_at
                    if answer.now > grant.since:
                        # The grant was made by an earlier request whose reply was lost.
                        # Counted from this one, the holder would rely on the lease for
                        # longer than the store honours it.
                        waiter.sent_at -= (answer.now - grant.since) / MICROS
                    effects.served.append(waiter)
            self._last_answer, wait = answer, None
        elif isinstance(answer, Waiting):
            self._placed, self._last_answer = not self._dropped, answer
            for waiter in self.waiters:
                waiter.last_reply = answer
            wait = answer.retry_after
        else:
            return self._refused(answer, asked)
        self._continue(effects, wait, now, random)
        return effects

    def failed(self, now: float, random: float, *, repeat: bool = False) -> Effects:
        """Process the failure of the request under way.

        Tasks that have an entry in the store keep waiting; the others are turned away.
        ``now``: local monotonic seconds. ``random``, in [0, 1), is the jitter of the
        pause before the next request. ``repeat``: whether the request was certainly not
        carried out and may succeed soon. If so, tasks without an entry also keep
        waiting, until the time ``Waiter.until``.
        """
        asked, self._asked = self._asked, ()
        self._failures += 1
        again = now + back_off(self._failures, random)
        effects = Effects()
        for waiter in asked:
            stays = waiter.last_reply is not None or (repeat and again < waiter.until)
            if not stays and self._remove(waiter):
                effects.turned_away.append(waiter)
        if not repeat:
            self._unsure.update(w for w in asked if w in self.waiters)
            self._perhaps_placed = bool(self.waiters) and not self._dropped
        if self.waiters:
            self.due = again
        else:
            effects.send = self._give_up_entry()
        return effects

    def _describe_last_answer(self) -> Waiting | None:
        if isinstance(self._last_answer, Granted):
            self._last_answer = _seen_from_behind(self._last_answer)
        return self._last_answer

    def _remove(self, waiter: Waiter) -> bool:
        if self.waiters and self.waiters[0] is waiter:
            self.waiters.popleft()
        elif waiter in self.waiters:
            self.waiters.remove(waiter)
        else:
            return False
        return True

    def _refused(self, answer: Refused, asked: tuple[Waiter, ...]) -> Effects:
        assert answer.why == FULL, answer  # a fresh ticket that may queue
        self._placed = False
        effects = Effects(turned_away=[w for w in asked if self._remove(w)])
        effects.send = self.ask()
        return effects

    def _continue(
        self, effects: Effects, wait: int | None, now: float, random: float
    ) -> None:
        if not self.waiters:
            effects.send = self._give_up_entry()
        elif self._placed and not self._woken:
            seconds = None if wait is None else wait / MICROS
            self.due = now + next_poll(self._pace, seconds, random)
        else:
            effects.send = self.ask()

    def _give_up_entry(self) -> Withdraw | None:
        # The tasks it was made for left, or were turned away, meanwhile. The resource
        # would be offered to it, and cost all others a claim window.
        placed, self._placed = self._placed, False
        return Withdraw(self._client_id, self.mode) if placed else None


def _seen_from_behind(granted: Granted) -> Waiting:
    ends = [grant.expires for grant in granted.grants if grant.expires is not None]
    never = len(ends) < len(granted.grants)
    after = None if never or not ends else max(0, max(ends) - granted.now)
    return Waiting(0, after, describe_grants(granted.grants))
