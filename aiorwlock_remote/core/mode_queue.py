"""The waiting tasks of one client at one resource in one mode, without I/O.

However many tasks of a client wait, the store sees one queue entry and one request at a
time. A ``ModeQueue`` is informed of each event (a task joins or leaves, a reply or a
wake-up comes, time passes) and returns the request to send. The runtime sends it
(``runtime/wait_queue.py``).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice, takewhile

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
from aiorwlock_remote.core.doorman import Grant, describe_grants
from aiorwlock_remote.core.pushed import PushedGrant, ReplyDelays, StoreTime
from aiorwlock_remote.core.queue_states import (
    ASK,
    CONFIRM,
    CONFIRMING,
    EMPTIED,
    FAILED,
    HELD_BACK,
    HOLD,
    IDLE,
    LOST,
    NONE,
    PLACED,
    REPLY_NOT_HELD,
    REPLY_NOT_PLACED,
    REPLY_PLACED,
    TRANSITIONS,
    UNDER_WAY,
    Entry,
    Event,
    IllegalEvent,
    Request,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import (
    MICROS,
    MIN_MARGIN,
    PollPolicy,
    back_off,
    micros,
    next_poll,
    poll_stretch,
)
from aiorwlock_remote.errors import LossReason

MAX_CLAIMS_PER_ACQUIRE = 500
MIN_SHARE_LEFT = 1 / 3
"""Part of a pushed grant that must be left for its task to enter by the message."""
MIN_ROUND_TRIPS_LEFT = 4
"""So many times the longest delay of a recent reply must be left, too: else a slow
confirmation would often come too late, and the task would lose its lock."""
MIN_DELAYS_LEFT = 2
"""The same for the delay of the message itself, by the store's clock."""

# As the names of ``queue_states``: quicker than by the class on Python 3.11.
_WRITE, _PERMIT = Mode.WRITE, Mode.PERMIT


@dataclass(slots=True, eq=False)
class Waiter:
    """A task in a ``ModeQueue``, and the grant it got.

    Attributes:
        sent_at: Local monotonic time (s) from which the lease of the grant counts: when
            its request was sent. If the grant came from an earlier request, whose reply
            was lost, a time no later than that grant.
        replied: Whether the store has replied while the task waited, or has its entry:
            then an outage does not turn the task away.
        until: Local monotonic time (s) until which a request that failed without effect
            is repeated for a task that has no queue entry yet.
        unheard: If the task joined while a request was under way, how many replies the
            queue had received by then; otherwise -1.
        margin: How many seconds before its end the task gives up a pushed grant.
        ends: Local monotonic time (s) at which the task gives up the pushed grant by
            which it entered, unless the store confirms the grant; None: it counts from
            ``sent_at``.
        limit: Of the task's semaphore; 0 for a lock.
        behind: Whether the task is in no request until ``ModeQueue.lift``.
    """

    claim: Claim
    policy: Policy
    max_waiters: int | None = None
    grant: Grant | None = None
    sent_at: float = 0.0
    replied: bool = False
    until: float = -math.inf
    unheard: int = -1
    margin: float = MIN_MARGIN
    ends: float | None = None
    limit: int = 0
    behind: bool = False

    @property
    def ticket(self) -> str:
        return self.claim.ticket


@dataclass(slots=True, eq=False)
class Effects:
    """What to do after a reply, failure or message: wake tasks, send a request, if any.

    Attributes:
        served: These tasks have a grant.
        turned_away: These tasks stop waiting without a grant.
        confirmed: The pushed grant of this task has its whole lease now, which counts
            from ``Waiter.sent_at``.
        lost: The store does not know the pushed grant of this task, for this reason.
        stray: Whether the store granted the ticket of ``lost`` anew, under another
            fence, so that this grant must be given back.
    """

    served: tuple[Waiter, ...] = ()
    turned_away: tuple[Waiter, ...] = ()
    send: Acquire | Withdraw | None = None
    confirmed: Waiter | None = None
    lost: tuple[Waiter, LossReason] | None = None
    stray: bool = False


class ModeQueue:
    """First-in, first-out queue of one client's tasks for one mode of one resource.

    A queue of writers asks for one ticket at a time, one of readers for all its readers
    at once, and one of a semaphore for as many permits as tasks wait. If the store
    pushes grants, the first writer may enter by a message; the acquire that confirms
    this grant is a request under way like any other. The queue reads no clock.

    What the client knows of its entry in the store, and the request for it, are the two
    states ``_entry`` and ``_request``. ``core/queue_states.py`` has the table of all
    their transitions; an event that is not in it raises ``IllegalEvent``.

    Invariants, each with the test in ``tests/core/test_mode_queue.py``
    that fails without it:

    * At most one acquire is under way; ``_asked`` are its tasks, and there are none
      otherwise (test_one_request_at_a_time,
      test_no_message_is_believed_during_a_request).
    * Tasks are served in the order they joined; readers ask together
      (test_whatever_happens_nothing_is_left_behind, test_readers_ask_together).
    * A ticket that may have a grant in the store, or is in the store's entry and may
      get one pushed, is withdrawn when its task leaves: ``_asked``, ``_following``, and
      ``_unsure`` (test_a_task_that_leaves_after_a_lost_reply_is_withdrawn,
      test_the_ticket_in_the_entry_is_withdrawn).
    * A message lets the first writer in if it names its ticket's grant, and while the
      store's clock cannot have reached the end of that grant
      (test_a_pushed_grant_lets_the_first_writer_in,
      test_a_message_that_is_not_believed_is_a_wake_up).
    * The store has at most one entry for all tasks, and the last task to leave gives
      the entry back: ``Entry.PLACED``, and ``Entry.MAYBE`` after a lost reply
      (test_a_place_that_may_have_been_made_is_given_back,
      test_an_entry_that_may_exist_is_given_back_after_another_failure,
      test_a_place_made_for_tasks_that_left_is_given_back).
    * A withdrawal that follows an acquire under way undoes the entry this acquire may
      make: ``Entry.WITHDRAWN`` (test_leaving).
    * A wake-up while a request is under way is not lost: ``_woken`` asks again at once
      (test_a_waiter_asks_again_when_woken_or_at_its_poll).
    * A lease counts from the request that the store carried out
      (test_a_grant_whose_answer_was_lost_is_anchored_at_its_own_request).
    * ``due`` is None when no task waits (test_nobody_looks_for_those_who_left).
    * Tasks that joined while the queue was barred are in no request until the bar is
      lifted (test_a_task_behind_a_bar_asks_later).
    """

    def __init__(
        self,
        client_id: str,
        mode: Mode,
        poll_policy: PollPolicy,
        delays: ReplyDelays | None = None,
    ) -> None:
        """``delays``: of all queues of the process; None: of this queue alone."""
        self.waiters: deque[Waiter] = deque()
        self.due: float | None = None
        """Local monotonic time of the next poll, in seconds; None: no poll is due."""
        self.mode: Mode = mode
        self._client_id = client_id
        self._poll_policy = poll_policy
        self._entry_ttl = micros(poll_policy.entry_ttl)
        self._claim_window = micros(poll_policy.claim_window)
        self._pushes = poll_policy.pushes and mode is _WRITE
        self._entry: Entry = NONE
        self._request: Request = IDLE
        # Of the request under way: its tasks, the task whose ticket it puts into the
        # client's new entry, and whether a wake-up came since it was sent.
        self._asked: tuple[Waiter, ...] = ()
        self._following: Waiter | None = None
        self._woken = False
        # The acquire that ``pushed`` will need, made ahead: see ``confirmation``.
        self._confirmation: Acquire | None = None
        # What ``only_request`` returned last.
        self._only: Acquire | None = None
        # The tasks whose tickets the store may know from earlier requests.
        self._unsure: set[Waiter] = set()
        # What the newest reply said of the store's clock.
        self._store_time: StoreTime | None = None
        self._delays = delays or ReplyDelays()
        # How much longer than usual the entry lives, and its next poll may be away.
        self._stretch = 1.0
        self._last_answer: Waiting | Granted | None = None
        self._answers = 0
        self._barred = False
        self._failures = 0

    @property
    def idle(self) -> bool:
        return not self.waiters and self._request is IDLE

    @property
    def unused(self) -> bool:
        """True if no task waits, the store knows of none, and the last request went
        well: the next task to join is in the same state as the first one ever.
        """
        return (
            not (self.waiters or self._unsure or self._failures or self._barred)
            and self._request is IDLE
            and self._entry is NONE
        )

    @property
    def held_back(self) -> bool:
        """True if the tasks wait for ``ask`` to be called: see ``join``."""
        return self._request is HELD_BACK

    @property
    def watching(self) -> bool:
        """True if tasks wait and have an entry in the store, so wake-ups come."""
        return self._entry is PLACED and bool(self.waiters)

    @property
    def unsent(self) -> bool:
        """True if the task that joined last is in no request yet: it joined while one
        was under way, and follows with the next.
        """
        if not (self._asked and self.waiters):
            return False
        last = self.waiters[-1]
        return last.unheard == self._answers and last not in self._asked

    def only_request(
        self, claim: Claim, policy: Policy, max_waiters: int | None, limit: int
    ) -> Acquire:
        """Return the acquire that ``join`` would return for the only task, if the queue
        is ``unused``; but the claim in it may be that of an earlier task. The same
        object is returned as long as the arguments but ``claim`` are the same.
        """
        known = self._only
        if (
            known is not None
            and known.policy is policy
            and known.max_waiters == max_waiters
            and known.limit == limit
        ):
            return known
        self._only = Acquire(
            (claim,),
            self.mode,
            policy,
            self._client_id,
            may_queue=True,
            max_waiters=max_waiters,
            entry_ttl=self._entry_ttl,
            claim_window=self._claim_window,
            push=self._pushes,
            limit=limit,
        )
        return self._only

    def join(self, waiter: Waiter, *, hold: bool = False) -> Acquire | None:
        """Add a task to the queue; return the request to send, or None.

        ``hold``: send no request for it now, because ``unsent`` tasks of the other mode
        are to come first. Then ``held_back`` is True, until the next ``ask``.
        """
        self.waiters.append(waiter)
        waiter.behind = self._barred
        if self._entry is PLACED and self._request is IDLE:
            # The entry in the store is already the new task's, too. Otherwise an outage
            # would turn the task away, while those before it wait on
            # (test_a_task_that_joins_an_entry_waits_through_an_outage).
            waiter.replied = True
            return None
        waiter.unheard = self._answers
        if hold and self._request is IDLE:
            self._move(HOLD)
        return self.ask() if self._request is IDLE else None

    def bar(self) -> None:
        """Keep tasks that join from now on out of all requests, until ``lift``."""
        self._barred = True

    def lift(self) -> Acquire | None:
        """End ``bar``; return the request for the tasks that joined meanwhile, if they
        need one now, or None.
        """
        if not self._barred:
            return None
        self._barred = False
        for waiter in self.waiters:
            if waiter.behind and self._asked:
                waiter.unheard = self._answers  # as if it joined now
            waiter.behind = False
        return None if self._entry is PLACED or self.due is not None else self.ask()

    def last_reply_to(self, waiter: Waiter) -> Waiting | None:
        """Return the store's last reply; None if none came since this task joined."""
        # While a request is on its way, a reply from before the task joined does not
        # show that the store replies to it (test_an_earlier_reply_is_not_to_this_task).
        # Without a request on its way the queue has an entry, whose last reply is the
        # task's, too: if it leaves before the next request, it must not report that the
        # store did not reply (test_a_later_waiter_gets_the_last_reply_of_the_store).
        if self._request is not IDLE and waiter.unheard == self._answers:
            return None
        return self._describe_last_answer()

    def leave(self, waiter: Waiter) -> Withdraw | None:
        """Remove a task that stops waiting; return the withdrawal to send, or None."""
        asked = waiter in self._asked or waiter in self._unsure
        asked = asked or waiter is self._following
        self._unsure.discard(waiter)
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        keep = bool(self.waiters)
        given_back = not keep and self._note_emptied()
        if not asked and not given_back:
            return None
        tickets = (waiter.ticket,) if asked else ()
        return Withdraw(self._client_id, self.mode, tickets, keep=keep)

    def wake(self) -> Acquire | None:
        """Note a wake-up, even a spurious one; return the acquire to send, or None."""
        if self._request is IDLE:
            return self.ask()
        self._woken = True
        return None

    def ask(self) -> Acquire | None:
        """Return the acquire to send; None if no task waits or one is under way."""
        if not self.waiters or self._request in UNDER_WAY or self.waiters[0].behind:
            return None
        return self._acquire(ASK)

    def confirmation(self) -> Acquire | None:
        """Return the acquire that will confirm the grant if a message lets the only
        task in; None if several tasks wait, or if no message is waited for.

        ``pushed`` returns the same object, unless a task joins first or another request
        is sent: so that it can be made ready to be sent while the task waits.
        """
        self._confirmation = None
        if self._expects_message and len(self.waiters) == 1:
            first = self.waiters[0]
            self._confirmation = self._request_for(first, (first.claim,), confirms=True)
        return self._confirmation

    def _ready_confirmation(self) -> Acquire | None:
        ready = self._confirmation
        fits = (
            ready is not None
            and len(self.waiters) == 1
            and ready.claims[0] is self.waiters[0].claim
        )
        return ready if fits else None

    @property
    def _expects_message(self) -> bool:
        return self._pushes and self.watching and self._request is IDLE

    def _acquire(self, event: Event) -> Acquire:
        self._move(event)
        first = self.waiters[0]
        if event is CONFIRM and (ready := self._ready_confirmation()) is not None:
            self._asked, self.due, self._woken = (first,), None, False
            return ready
        if self.mode is _WRITE or len(self.waiters) == 1:
            self._asked = (first,)
            claims: tuple[Claim, ...] = (first.claim,)
        else:
            self._asked = self._alike(first)
            claims = tuple(w.claim for w in self._asked)
        more = len(self.waiters) - len(self._asked)
        if self._barred:
            more -= sum(waiter.behind for waiter in self.waiters)
        following: Claim | None = None
        if self._pushes and more:
            self._following = self.waiters[1]
            following = self._following.claim
        self.due, self._woken = None, False
        return self._request_for(first, claims, more, following, event is CONFIRM)

    def _request_for(
        self,
        first: Waiter,
        claims: tuple[Claim, ...],
        more: int = 0,
        following: Claim | None = None,
        confirms: bool = False,  # noqa: FBT001, FBT002 - positional: the hot path
    ) -> Acquire:
        return Acquire(
            claims,
            self.mode,
            first.policy,
            self._client_id,
            may_queue=True,
            more=more,
            waiting=len(self.waiters),
            max_waiters=None if self._entry is PLACED else first.max_waiters,
            entry_ttl=round(self._entry_ttl * self._stretch),
            claim_window=self._claim_window,
            push=self._pushes,
            following=following,
            limit=first.limit,
            confirms=confirms,
        )

    def _alike(self, first: Waiter) -> tuple[Waiter, ...]:
        """Return the tasks that can ask together with the first one."""
        if self.mode is _PERMIT:
            # One request has one limit. A task with another limit is not passed by
            # those behind it (test_permits_of_another_limit_are_asked_for_next).
            same = takewhile(lambda w: w.limit == first.limit, self.waiters)
            return tuple(islice(same, MAX_CLAIMS_PER_ACQUIRE))
        # One request has one policy; readers of another policy ask next.
        alike = [w for w in self.waiters if w.policy is first.policy and not w.behind]
        return tuple(alike[:MAX_CLAIMS_PER_ACQUIRE])

    def pushed(self, message: PushedGrant, now: float) -> Effects | None:
        """Let the first task in if the store pushed it this grant, else return None.

        If None, the message is to be taken as a wake-up. ``now``: local monotonic
        seconds. The acquire in ``Effects.send`` confirms the grant; it is to be sent
        before the task uses the grant.
        """
        # A request under way finds the grant, too: its reply decides.
        if not self._expects_message:
            return None
        first = self.waiters[0]
        ends = self._believed_until(first, message, now)
        if ends is None:
            return None
        acquire = self._acquire(CONFIRM)
        self.waiters.popleft()
        self._unsure.discard(first)
        claim = first.claim
        first.grant = Grant(
            *(claim.ticket, self.mode, message.fence, message.since, message.expires),
            *(claim.who, claim.lock_delay),
        )
        first.sent_at, first.ends = now, ends
        return Effects(served=(first,), send=acquire)

    def answered(
        self, answer: Answer | NotHeld, sent_at: float, now: float, random: float
    ) -> Effects:
        """Process the store's reply to the request under way.

        ``sent_at`` (just before the request was sent) and ``now``: local monotonic
        seconds. ``random``, in [0, 1), is the jitter of the next poll.
        """
        confirmed = self._request is CONFIRMING
        self._move(_event_of(answer))
        asked, self._asked, self._failures = self._asked, (), 0
        self._answers += 1
        self._delays.note(now - sent_at)
        # This reply covers what an earlier, lost one may have granted.
        if self._unsure:
            self._unsure.difference_update(asked)
        effects = Effects()
        # After a grant that leaves no task waiting no message can follow.
        waits = self._following is not None or not isinstance(answer, Granted)
        if self._pushes and waits:
            self._note_entry(answer, asked[0], sent_at)
        if confirmed:
            self._confirmed(effects, asked[0], answer, sent_at)
        if isinstance(answer, Granted):
            effects.served = self._granted(asked, answer, sent_at)
            self._last_answer, wait = answer, None
            if self._entry is PLACED:
                self._share_entry()
        elif isinstance(answer, Waiting):
            self._last_answer = answer
            for waiter in self.waiters:
                waiter.replied = True
            wait = answer.retry_after
        elif isinstance(answer, NotHeld):
            # The confirmation put no task into the queue, and the entry has no ticket:
            # the next task asks at once.
            self._woken, wait = True, None
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
        following, self._following = self._following, None
        # Another server may carry on, by another clock
        # (test_after_a_failure_no_message_is_believed).
        self._store_time = None
        self._failures += 1
        again = now + back_off(self._failures, random)
        turned_away: list[Waiter] = []
        for waiter in asked:
            stays = waiter.replied or (repeat and again < waiter.until)
            if not stays and self._remove(waiter):
                turned_away.append(waiter)
        effects = Effects(turned_away=tuple(turned_away))
        if not repeat:
            self._unsure.update(w for w in asked if w in self.waiters)
            if following is not None and following in self.waiters:
                self._unsure.add(following)
        self._move(LOST if self.waiters and not repeat else FAILED)
        if self.waiters:
            self.due = again
        else:
            effects.send = self._give_up_entry()
        return effects

    def _believed_until(
        self, first: Waiter, message: PushedGrant, now: float
    ) -> float | None:
        # Without a reply nothing is known of the store's clock.
        if self._store_time is None or not message.proves(first.ticket):
            return None
        ends, late = self._store_time.bounds(message, now)
        if message.seen is not None:
            seen_ends, seen_late = message.seen.bounds(message, now)
            ends, late = min(ends, seen_ends), min(late, seen_late)
        ends -= first.margin
        # A message of a later time than the clock can show: that clock was set forward,
        # or is another server's, so that nothing is known about the end either.
        if late < 0 or now >= ends:
            return None
        window = (message.expires - message.since) / MICROS
        needed = max(
            MIN_SHARE_LEFT * window,
            MIN_ROUND_TRIPS_LEFT * self._delays.longest,
            MIN_DELAYS_LEFT * late,
        )
        return ends if ends - now >= needed else None

    def _note_entry(
        self, answer: Answer | NotHeld, first: Waiter, sent_at: float
    ) -> None:
        """Note the store's time in a reply, and whose ticket its entry has now."""
        following, self._following = self._following, None
        if isinstance(answer, Granted):
            self._store_time = StoreTime(answer.latest or answer.now, sent_at)
            if answer.placed and following is not None and following in self.waiters:
                self._unsure.add(following)
        elif isinstance(answer, Waiting):
            self._store_time = StoreTime(answer.now, sent_at)
            if first.claim.may_be_pushed and first in self.waiters:
                self._unsure.add(first)

    def _confirmed(
        self,
        effects: Effects,
        first: Waiter,
        answer: Answer | NotHeld,
        sent_at: float,
    ) -> None:
        assert first.grant is not None
        grants = answer.grants if isinstance(answer, Granted) else ()
        grant = next((g for g in grants if g.ticket == first.ticket), None)
        if grant is None:
            gone = answer if isinstance(answer, NotHeld) else NotHeld()
            effects.lost = first, gone.reason
        elif grant.fence != first.grant.fence:
            effects.lost, effects.stray = (first, "expired"), True
        else:
            assert isinstance(answer, Granted)
            self._grant(first, grant, answer.now, sent_at)
            effects.confirmed = first

    def _share_entry(self) -> None:
        # Those who joined meanwhile, the last ones, have the entry, too, and keep it
        # during an outage.
        for waiter in reversed(self.waiters):
            if waiter.replied:
                break
            waiter.replied = True

    def _granted(
        self, asked: tuple[Waiter, ...], answer: Granted, sent_at: float
    ) -> tuple[Waiter, ...]:
        served: list[Waiter] = []
        grants = {grant.ticket: grant for grant in answer.grants}
        for waiter in asked:
            grant = grants.get(waiter.claim.ticket)
            if grant is not None and self._remove(waiter):
                self._grant(waiter, grant, answer.now, sent_at)
                served.append(waiter)
        return tuple(served)

    def _grant(self, waiter: Waiter, grant: Grant, now: int, sent_at: float) -> None:
        waiter.grant, waiter.sent_at, waiter.ends = grant, sent_at, None
        if now > grant.since:
            # The grant was made by an earlier request whose reply was lost. Counted
            # from this one, the holder would rely on the lease for longer than the
            # store honours it.
            waiter.sent_at -= (now - grant.since) / MICROS

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
        effects = Effects(turned_away=tuple(w for w in asked if self._remove(w)))
        effects.send = self.ask()
        return effects

    def _continue(
        self, effects: Effects, wait: int | None, now: float, random: float
    ) -> None:
        if not self.waiters:
            effects.send = self._give_up_entry()
        elif self._entry is PLACED and not self._woken:
            seconds = None if wait is None else wait / MICROS
            # The entry lives for what was asked. A longer poll needs another request
            # first (test_a_waiter_far_from_the_head_polls_less_often).
            asked, self._stretch = self._stretch, self._next_stretch()
            stretch = min(asked, self._stretch)
            self.due = now + next_poll(self._poll_policy, seconds, random, stretch)
        else:
            effects.send = self.ask()

    def _next_stretch(self) -> float:
        answer = self._last_answer
        if not isinstance(answer, Waiting):
            return 1.0
        # A semaphore's permits are given out to as many at a time.
        return poll_stretch(self._poll_policy, answer.ahead // max(1, answer.limit))

    def _give_up_entry(self) -> Withdraw | None:
        # The tasks it was made for left, or were turned away, meanwhile. The resource
        # would be offered to it, and cost all others a claim window.
        return Withdraw(self._client_id, self.mode) if self._note_emptied() else None

    def _note_emptied(self) -> bool:
        """Note that no task waits; return whether an entry is to be given back."""
        given_back = self._entry is not NONE or self._request in UNDER_WAY
        # What was said to them is no answer to a task that joins later, and their
        # place in the queue is not its: its entry is asked for with its usual life
        # (test_asking_alone.py).
        self.due = self._last_answer = self._confirmation = None
        self._stretch = 1.0
        self._move(EMPTIED)
        return given_back

    def _move(self, event: Event) -> None:
        entry, request = self._entry, self._request
        try:
            self._entry, self._request = TRANSITIONS[entry, request][event]
        except KeyError:
            what = f"{event} does not fit entry {entry}, request {request}"
            raise IllegalEvent(what) from None


def _event_of(answer: Answer | NotHeld) -> Event:
    if isinstance(answer, Granted):
        return REPLY_PLACED if answer.placed else REPLY_NOT_PLACED
    if isinstance(answer, Waiting):
        return REPLY_PLACED
    return REPLY_NOT_HELD if isinstance(answer, NotHeld) else REPLY_NOT_PLACED


def _seen_from_behind(granted: Granted) -> Waiting:
    ends = [grant.expires for grant in granted.grants if grant.expires is not None]
    never = len(ends) < len(granted.grants)
    after = None if never or not ends else max(0, max(ends) - granted.now)
    return Waiting(0, after, describe_grants(granted.grants))
