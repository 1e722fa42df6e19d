"""Whether every client that keeps asking is granted: a history played to its end.

Holders hold shortly and release. A waiter asks again when its last reply says so, at
its poll, or when it is called. Nothing else happens.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    NotHeld,
    Release,
    Released,
    Waiting,
)
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.ticket import Mode, Policy
from tests.core.machine import Machine
from tests.core.world import MS, SECOND

POLL = 1_500_000
ROUND_TRIP = 2 * MS
HOLD = 10 * MS
Who = tuple[str, Mode]


class Ending:
    """Plays a machine's world to its end.

    ``deaf``: wake-ups are lost, so polls and announced times alone must do. ``churn``:
    clients that come back with a new ticket each time they were served, in this mode.
    """

    def __init__(
        self, machine: Machine, *, deaf: bool = False, churn: tuple[Who, ...] = ()
    ) -> None:
        self.machine = machine
        self.asks: Counter[Who] = Counter()
        self.overtaken: Counter[str] = Counter()
        self._deaf = deaf
        self._churn = churn
        self._order = count()
        self._agenda: list[tuple[int, int, Who, str]] = []
        self._missing = set(machine.waiting)
        self._pushed_tickets: dict[Who, str] = {}
        self.entered_by_message = 0

    def play(self, within: int) -> None:
        """Run until all tickets that waited at the beginning have been granted."""
        machine = self.machine
        if machine.seat is not None and machine.seat.value != machine.record_seat:
            machine.seat = None
        for grant in (machine.record or Doorman()).grants:
            self._do(Release(grant.ticket))
        for client_id, mode in self._churn:
            machine.waiting[machine.claim().ticket] = client_id, mode
        for who in dict.fromkeys(machine.waiting.values()):
            self._plan(0, who)
        end = machine.now + within
        while self._missing:
            at, _, who, ticket = heapq.heappop(self._agenda)
            machine.now = max(machine.now, at)
            assert machine.now < end, f"{self._missing} starve"
            assert max(self.asks.values(), default=0) < 500, "asking without end"
            if ticket:
                self._leave(who, ticket)
            else:
                self._ask(who)

    def _plan(self, after: int, who: Who, ticket: str = "") -> None:
        at = self.machine.now + after
        heapq.heappush(self._agenda, (at, next(self._order), who, ticket))

    def _ask(self, who: Who) -> None:
        self._drop_other_plans(who)
        tickets = [t for t, waits in self.machine.waiting.items() if waits == who]
        if not tickets:
            return
        self.asks[who] += 1
        self._do(self._acquire(who, tickets, confirms=self._heard(who, tickets[0])))

    def _heard(self, who: Who, ticket: str) -> bool:
        """Return whether a client has entered by a message, and now confirms it."""
        heard = who in self._pushed_tickets and self._pushed_tickets.pop(who) == ticket
        if heard:
            self.entered_by_message += 1
        return heard

    def _acquire(
        self, who: Who, tickets: list[str], *, confirms: bool = False
    ) -> Acquire:
        client_id, mode = who
        asked = tickets[:1] if mode is Mode.WRITE else tickets
        claims = tuple(Claim(t, 20 * SECOND) for t in asked)
        more = len(tickets) - len(asked)
        return Acquire(
            claims,
            mode,
            Policy.FAIR,
            client_id=client_id,
            may_queue=True,
            more=more,
            push=mode is Mode.WRITE,
            following=Claim(tickets[1], 20 * SECOND) if more else None,
            confirms=confirms,
            waiting=len(tickets),
            limit=self.machine.limit_of(client_id),
        )

    def _leave(self, who: Who, ticket: str) -> None:
        if who in self._churn:  # and is back at once, in the same request
            self.machine.waiting[self.machine.claim().ticket] = who
            tickets = [t for t, waits in self.machine.waiting.items() if waits == who]
            self._do(Release(ticket, None, (self._acquire(who, tickets),)))
        else:
            self._do(Release(ticket))

    def _do(self, command: Acquire | Release) -> None:
        step = self.machine.step(command)
        asked = command.then if isinstance(command, Release) else (command,)
        reply = step.reply
        replies = reply.then if isinstance(reply, Released) else (reply,)
        for ask, answer in zip(asked, replies, strict=True):
            who = ask.client_id, ask.mode
            if isinstance(answer, Granted):
                for grant in answer.grants:
                    self._served(who, grant.ticket)
                self._plan(ROUND_TRIP, who)
            elif isinstance(answer, NotHeld):
                self._plan(0, who)  # it came too late: the task has lost its lock
            else:
                assert isinstance(answer, Waiting)
                retry_after = POLL if answer.retry_after is None else answer.retry_after
                self._plan(min(POLL, retry_after) + ROUND_TRIP, who)
        if step.pushed is not None and not self._deaf:
            self._pushed_tickets[step.wakes[0], Mode.WRITE] = step.pushed.ticket
        for client_id in () if self._deaf else step.wakes:
            for mode in self.machine.modes:
                self._plan(ROUND_TRIP, (client_id, mode))

    def _served(self, who: Who, ticket: str) -> None:
        if self.machine.waiting.pop(ticket, None):
            self._missing.discard(ticket)
            self.overtaken.update(self._missing)
            self._plan(HOLD, who, ticket)

    def _drop_other_plans(self, who: Who) -> None:
        self._agenda = [p for p in self._agenda if p[3] or p[2] != who]
        heapq.heapify(self._agenda)
