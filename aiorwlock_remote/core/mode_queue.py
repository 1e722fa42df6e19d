"""The plan of one process waiting at one resource for one mode: a lane.

However many tasks of a process wait, the store sees one place and one request at a
time. A lane is told what happens (somebody joins, leaves, an answer comes, the bell
rings, time passes) and says what to send. It does no I/O and knows no clock.

Inside a lane it is first come, first served. A writer lane asks for one ticket at a
time, a reader lane for all its readers at once.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

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
    """One task that waits. ``sent_at``: when the request that let it in was sent.

    (Or, if that one's answer was lost, a time not later than when the store carried it
    out: the lease counts from there.)

    ``until``: up to this local time a request that was certainly not carried out is
    sent again. ``unheard``: how many answers its lane had when it joined, if a request
    was under way then.
    """

    claim: Claim
    policy: Policy
    max_waiters: int | None = None
    grant: Grant | None = None
    sent_at: float = 0.0
    told: Waiting | None = None
    until: float = -math.inf
    unheard: int = -1

    @property
    def ticket(self) -> str:
        """The secret of this attempt."""
        return self.claim.ticket


class Effects:
    """What an answer meant: who got in, who cannot, and what to send next."""

    __slots__ = ("send", "served", "turned_away")

    def __init__(self) -> None:
        """Nothing."""
        self.served: list[Waiter] = []
        self.turned_away: list[Waiter] = []
        self.send: Acquire | Withdraw | None = None


class ModeQueue:
    """One mode's waiters of one process at one resource.

    At most one request is under way (``_asked``: for whom), and the store has at most
    one place for all. What happens meanwhile is remembered until its answer is there:
    ``_rung``: ask again at once; ``_dropped``: nobody was left, and the place it may
    have given was withdrawn behind it. Of an answer that was lost nobody knows what it
    did: ``_unsure`` are those it may have granted, ``_perhaps_placed`` the place.
    ``_said``: the last answer, of ``_answers``, that told how the resource stands.
    """

    def __init__(self, gate: str, mode: Mode, pace: PollPolicy) -> None:
        """``gate`` is the process's nonce, ``pace`` how the store is waited for."""
        self.waiters: deque[Waiter] = deque()
        self.due: float | None = None
        self._gate = gate
        self.mode: Mode = mode
        self._pace = pace
        self._place_life = micros(pace.entry_ttl)
        self._window = micros(pace.claim_window)
        self._asked: tuple[Waiter, ...] = ()
        self._unsure: set[Waiter] = set()
        self._placed = False
        self._perhaps_placed = False
        self._said: Waiting | Granted | None = None
        self._answers = 0
        self._rung = False
        self._dropped = False
        self._failures = 0

    @property
    def idle(self) -> bool:
        """Nobody waits and nothing is under way."""
        return not self.waiters and not self._asked

    @property
    def watching(self) -> bool:
        """Whether it has a place and waits for the bell."""
        return self._placed and bool(self.waiters)

    def join(self, waiter: Waiter) -> Acquire | None:
        """Somebody waits from now on; what to send, if anything."""
        self.waiters.append(waiter)
        if self._placed and not self._asked:
            # It sends nothing, and waits at the place that there is already.
            waiter.told = self._last_said()
            return None
        waiter.unheard = self._answers
        return None if self._asked else self.ask()

    def said(self, waiter: Waiter) -> Waiting | None:
        """Return what the store said last of the resource.

        None if a request is under way for this waiter, and the store has not answered
        since it joined. The store is not to blame if a waiter joins a lane that has a
        place and leaves before the lane asks again
        (``test_who_joins_later_is_told_what_the_store_said``).
        """
        if self._asked and waiter.unheard == self._answers:
            return None
        return self._last_said()

    def leave(self, waiter: Waiter) -> Withdraw | None:
        """Somebody gives up. Its ticket is withdrawn if it ever left the process."""
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
            self._forget_place()
        return Withdraw(self._gate, self.mode, tickets, keep=keep)

    def wake(self) -> Acquire | None:
        """The store has something for this lane; a hint, it may be mistaken."""
        if self._asked:
            self._rung = True
            return None
        return self.ask()

    def ask(self) -> Acquire | None:
        """The request for whoever waits, unless one is under way."""
        if not self.waiters or self._asked:
            return None
        first = self.waiters[0]
        if self.mode is Mode.WRITE or len(self.waiters) == 1:
            self._asked = (first,)
            claims: tuple[Claim, ...] = (first.claim,)
        else:
            alike = [w for w in self.waiters if w.policy is first.policy]
            self._asked = tuple(alike[:MAX_CLAIMS_PER_ACQUIRE])
            claims = tuple(w.claim for w in self._asked)
        self.due, self._rung, self._dropped = None, False, False
        return Acquire(
            claims,
            self.mode,
            first.policy,
            self._gate,
            may_queue=True,
            more=len(self.waiters) - len(self._asked),
            waiting=len(self.waiters),
            max_waiters=None if self._placed else first.max_waiters,
            entry_ttl=self._place_life,
            claim_window=self._window,
        )

    def answered(
        self, answer: Answer, sent_at: float, now: float, random: float
    ) -> Effects:
        """The answer to the request under way. Times in seconds, local clock."""
        asked, self._asked, self._failures = self._asked, (), 0
        self._answers += 1
        if self._unsure:
            self._unsure.difference_update(asked)
        self._perhaps_placed = False
        news = Effects()
        if isinstance(answer, Granted):
            self._placed = answer.placed and not self._dropped
            grants = {g.ticket: g for g in answer.grants}
            for waiter in asked:
                grant = grants.get(waiter.claim.ticket)
                if grant is not None and self._strike(waiter):
                    waiter.grant, waiter.sent_at = grant, sent_at
                    if answer.now > grant.since:
                        # A repeated request finds the grant of one whose answer was
                        # lost.
                        waiter.sent_at -= (answer.now - grant.since) / MICROS
                    news.served.append(waiter)
            self._said, wait = answer, None
        elif isinstance(answer, Waiting):
            self._placed, self._said = not self._dropped, answer
            for waiter in self.waiters:
                waiter.told = answer
            wait = answer.retry_after
        else:
            return self._refused(answer, asked)
        self._next(news, wait, now, random)
        return news

    def failed(self, now: float, random: float, *, repeat: bool = False) -> Effects:
        """The store did not answer. Who had a place waits on; who had none is told.

        ``repeat``: the request was certainly not carried out, and may succeed soon. Who
        had no place waits on as well, up to its ``until``.
        """
        asked, self._asked = self._asked, ()
        self._failures += 1
        again = now + back_off(self._failures, random)
        news = Effects()
        for waiter in asked:
            stays = waiter.told is not None or (repeat and again < waiter.until)
            if waiter in self.waiters and not stays:
                self.waiters.remove(waiter)
                news.turned_away.append(waiter)
        if not repeat:
            self._unsure.update(w for w in asked if w in self.waiters)
            self._perhaps_placed = bool(self.waiters) and not self._dropped
        if self.waiters:
            self.due = again
        else:
            news.send = self._give_up_place()
        return news

    def _last_said(self) -> Waiting | None:
        if isinstance(self._said, Granted):
            self._said = _behind(self._said)
        return self._said

    def _strike(self, waiter: Waiter) -> bool:
        """Off the list; False if it has left it already."""
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
        news = Effects()
        news.turned_away = [w for w in asked if w in self.waiters]
        for waiter in news.turned_away:
            self.waiters.remove(waiter)
        news.send = self.ask()
        return news

    def _next(self, news: Effects, wait: int | None, now: float, random: float) -> None:
        if not self.waiters:
            news.send = self._give_up_place()
        elif self._placed and not self._rung:
            seconds = None if wait is None else wait / 1e6
            self.due = now + next_poll(self._pace, seconds, random)
        else:
            news.send = self.ask()

    def _give_up_place(self) -> Withdraw | None:
        """It was for tasks that have left, or were turned away, meanwhile."""
        placed, self._placed = self._placed, False
        return Withdraw(self._gate, self.mode) if placed else None

    def _forget_place(self) -> None:
        self._placed, self._perhaps_placed = False, False
        self._dropped = bool(self._asked)


def _behind(granted: Granted) -> Waiting:
    """What a grant says to those who wait on: who holds the lock, and until when."""
    ends = [grant.expires for grant in granted.grants if grant.expires is not None]
    never = len(ends) < len(granted.grants)
    after = None if never or not ends else max(0, max(ends) - granted.now)
    return Waiting(0, after, describe_grants(granted.grants))
