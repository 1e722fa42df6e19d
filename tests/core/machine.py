"""Several clients, one resource, any history: a machine that Hypothesis drives.

A history is a list of ``Event``; each does one thing to the world: a command, new, late
or repeated; a foreign program that changes the mutex record; time that passes.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from aiorwlock_remote.core.commands import (
    OTHER_MODE,
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    IllegalCommand,
    Refused,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord, QueueEntry
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from tests.core.world import LEASES, MS, SECOND, SimulatedClients

CLIENT_IDS = ("ann", "bob", "cid")
PASSED = (*(0,) * 6, MS, 20 * MS, 150 * MS, 1200 * MS, 5 * SECOND, 11 * SECOND)
KINDS = (
    "rest",  # what a story's superfluous events shrink to
    *("acquire",) * 8,
    *("ask", "release", "access") * 3,
    *("withdraw", "renew", "downgrade", "upgrade", "adopt", "echo", "send", "deliver")
    * 2,
    *("hear", "crowd", "give_back", "upgrade") * 2,
    "confirm",
    *("depart", "depart", "depart", "force", "other_mode", "illegal"),
    *("steal", "vanish", "flush"),
)


class Event(NamedTuple):
    """One thing that happens. ``heard``: the client gets the reply."""

    kind: str
    client_id: int
    pick: int
    passed: int
    heard: bool


STORIES = st.lists(
    st.builds(
        Event,
        st.sampled_from(KINDS),
        st.integers(0, 2),
        st.integers(0, 15),
        st.sampled_from(PASSED),
        st.booleans(),
    ),
    min_size=50,
    max_size=100,
)
POLICIES = st.sampled_from([*([p] for p in Policy), list(Policy)])


class Machine(SimulatedClients):
    """A world in which histories happen."""

    modes: tuple[Mode, ...] = LOCK_MODES

    def limit_of(self, client_id: str) -> int:
        """Return how many permits a client allows; a lock has none."""
        del client_id
        return 0

    def _mode(self, event: Event) -> Mode:
        return Mode.WRITE if event.pick % 2 else Mode.READ

    def run(self, story: list[Event]) -> None:
        """Run a history."""
        for event in story:
            self.now += event.passed + 1
            getattr(self, f"_{event.kind}")(event)

    # ------------------------------------------------------------- commands

    def _rest(self, _event: Event) -> None:
        """Do nothing."""

    def _act(self, event: Event, command: Command) -> None:
        try:
            step = self.step(command)
        except IllegalCommand:
            return
        if event.heard:
            self.hear(command, step.reply)

    def _ask_for(self, event: Event, client_id: str, mode: Mode, fresh: int) -> Acquire:
        mine = [t for t, who in self.waiting.items() if who == (client_id, mode)]
        asked = tuple(Claim(t, 10 * SECOND) for t in mine)
        asked += tuple(self.claim(event.pick) for _ in range(fresh))
        writes = mode is Mode.WRITE
        more = len(asked) - 1 if writes else 0
        following = asked[1] if more and event.pick % 5 else None
        asked = asked[:1] if writes else asked
        may_queue = fresh == 0 or event.pick % 4 > 0
        if may_queue:
            self.waiting |= {c.ticket: (client_id, mode) for c in asked}
        return Acquire(
            asked,
            mode,
            self.policies[event.pick % len(self.policies)],
            client_id=client_id if may_queue else "",
            may_queue=may_queue,
            more=more if may_queue else 0,
            max_waiters=3 if event.pick == 11 else None,
            push=writes and may_queue and event.pick % 5 > 0,
            following=following if may_queue else None,
        )

    def _acquire(self, event: Event) -> None:
        mode = self._mode(event)
        fresh = 1 if mode is Mode.WRITE else 1 + event.pick // 8
        self._act(event, self._ask_for(event, CLIENT_IDS[event.client_id], mode, fresh))

    def _crowd(self, event: Event) -> None:
        """Writers of all clients wait, and each holder leaves to one of them."""
        for _ in range(1 + event.pick % 6):
            for client_id in CLIENT_IDS:
                fresh = 0 if self._waits((client_id, Mode.WRITE)) else 1
                command = self._ask_for(event, client_id, Mode.WRITE, fresh)
                self._act(event._replace(heard=True), command)
            for grant in (self.record or Doorman()).grants[:1]:
                self.waiting.pop(grant.ticket, None)
                self._act(event, Release(grant.ticket))

    def _give_back(self, event: Event) -> None:
        """A task leaves whose ticket its client's entry has, or that was pushed it."""
        mine = [entry for entry in self._queue() if entry.ticket]
        if mine:
            entry = mine[event.pick % len(mine)]
            self.waiting.pop(entry.ticket, None)
            keep = event.pick % 4 > 0
            command = Withdraw(entry.client_id, entry.mode, (entry.ticket,), keep=keep)
            self._act(event, command)

    def _carried(self, event: Event) -> tuple[Acquire, ...]:
        client_id = CLIENT_IDS[event.client_id]
        modes = [m for m in self.modes if (client_id, m) in self.waiting.values()]
        return tuple(self._ask_for(event, client_id, mode, 0) for mode in modes)

    def _ask(self, event: Event) -> None:
        for command in self._carried(event)[:1]:
            self._act(event, command)

    def _chosen(self, event: Event) -> str:
        """Return a ticket that a client relies on, one that is recorded, or any."""
        known = [*self.believed, *(g.ticket for g in (self.record or Doorman()).grants)]
        known = known or [f"t{n + 1}" for n in range(self.tickets)] or ["none"]
        return known[-1 - event.pick % len(known)]

    def _holder(self, event: Event) -> str:
        """Return a recorded holder's ticket, or else some ticket."""
        grants = (self.record or Doorman()).grants
        if event.pick == 15 or not grants:
            return self._chosen(event)
        return grants[event.pick % len(grants)].ticket

    def _release(self, event: Event) -> None:
        mode = (None, None, Mode.READ, Mode.WRITE)[event.pick % 4]
        then = self._carried(event) if event.pick % 3 else ()
        ticket = self._holder(event) if event.pick > 7 else self._chosen(event)
        self._act(event, Release(ticket, mode, then))

    def _withdraw(self, event: Event) -> None:
        mode = self._mode(event)
        who = CLIENT_IDS[event.client_id], mode
        mine = [t for t, waits in self.waiting.items() if waits == who]
        keep = event.pick % 3 == 0
        tickets = tuple(mine[:1] if keep else mine)
        for ticket in tickets:
            del self.waiting[ticket]
        upgrader = self._chosen(event) if event.pick > 12 else ""
        command = Withdraw(*who, tickets, keep=keep, upgrader=upgrader)
        self._act(event, command)

    def _renew(self, event: Event) -> None:
        lease = LEASES[event.pick % 3]
        self._act(event, Renew(((self._chosen(event), lease), ("t1", lease))))

    def _downgrade(self, event: Event) -> None:
        self._act(event, Downgrade(self._holder(event), self.claim(event.pick)))

    def _upgrade(self, event: Event) -> None:
        claim, client_id = self.claim(event.pick), CLIENT_IDS[event.client_id]
        may_wait = event.pick % 4 > 0
        self._act(event, Upgrade(self._holder(event), claim, client_id, may_wait))

    def _adopt(self, event: Event) -> None:
        """Adopt, mostly twice; a former owner without a reply relies on its grant."""
        ticket = self._holder(event)
        for _ in range(1 + event.pick % 2):
            self._act(event, Adopt(ticket, self.claim(event.pick)))

    def _force(self, event: Event) -> None:
        if self.seat is not None and event.pick % 2:
            self._act(event, ForceRelease(seat=self.seat.value))
            return
        for grant in (self.record or Doorman()).grants[:1]:
            fence = grant.fence - (event.pick % 4 == 0)
            self._act(event, ForceRelease(grant.holder, fence))

    def _other_mode(self, _event: Event) -> None:
        for grant in (self.record or Doorman()).grants[:1]:
            mode = Mode.READ if grant.mode is Mode.WRITE else Mode.WRITE
            ask = Acquire((Claim(grant.ticket, SECOND),), mode, self.policies[0])
            live = self.seat is not None and self.seat.value == self.record_seat
            live = live and not grant.dead(self.now + 1)
            reply = self.step(ask).reply
            if live:
                assert isinstance(reply, Refused)
                assert reply.why == OTHER_MODE

    def _illegal(self, _event: Event) -> None:
        for grant in (self.record or Doorman()).grants[:1]:
            claim = self.claim()
            move = Upgrade if grant.mode is Mode.WRITE else Downgrade
            before = self.record, self.seat
            try:
                step = self.step(move(grant.ticket, claim))
            except IllegalCommand:
                assert (self.record, self.seat) == before
            else:
                assert step.record.grant(grant.ticket) is None, "an illegal move"

    # ------------------------------------------------------ letters and messages

    def _echo(self, event: Event) -> None:
        if self.sent:
            self._act(event, self.sent[-1 - event.pick % len(self.sent)])

    def _send(self, event: Event) -> None:
        """Send a request that arrives later."""
        mode = self._mode(event)
        self.post.append(self._ask_for(event, CLIENT_IDS[event.client_id], mode, 1))

    def _deliver(self, event: Event) -> None:
        if self.post:
            self._act(event, self.post.pop(event.pick % len(self.post)))

    def _hear(self, event: Event) -> None:
        """A client hears of a pushed grant, soon, late or again, and uses it."""
        if not self.messages:
            return
        client_id, grant = self.messages[-1 - event.pick % len(self.messages)]
        who = client_id, Mode.WRITE
        if self.waiting.get(grant.ticket) != who or grant.dead(self.now):
            return  # a plain wake-up: its task has left, or it comes too late
        del self.waiting[grant.ticket]
        self.believed[grant.ticket] = grant
        others = (
            self._ask_for(event, client_id, Mode.WRITE, 0) if self._waits(who) else None
        )
        confirmation = Acquire(
            (Claim(grant.ticket, 10 * SECOND),),
            Mode.WRITE,
            client_id=client_id,
            may_queue=True,
            more=0 if others is None else 1 + others.more,
            push=True,
            following=None if others is None else others.claims[0],
            confirms=True,
        )
        if event.pick % 4:
            self._act(event, confirmation)
        else:
            self.post.append(confirmation)

    def _waits(self, who: tuple[str, Mode]) -> bool:
        return who in self.waiting.values()

    def _queue(self) -> tuple[QueueEntry, ...]:
        return (self.record or Doorman()).queue

    def _confirm(self, event: Event) -> None:
        """Confirm a ticket of the client's, pushed or not."""
        claim = Claim(self._chosen(event), SECOND)
        owners = [p.client_id for p in self._queue() if p.ticket == claim.ticket]
        client_id = (*owners, CLIENT_IDS[event.client_id])[0]
        confirmation = Acquire(
            (claim,), Mode.WRITE, client_id=client_id, may_queue=True, confirms=True
        )
        self._act(event, confirmation)

    # -------------------------------------------------------- the seat and the rest

    def _steal(self, event: Event) -> None:
        value = ("thief,5", "readers,7", "thief", "t1,5")[event.pick % 4]
        ends = self.now + 2 * SECOND if event.pick > 7 else None
        self.seat = MutexRecord(value, ends)

    def _depart(self, _event: Event) -> None:
        if self.seat is not None and self.seat.value != self.record_seat:
            self.seat = None

    def _vanish(self, _event: Event) -> None:
        self.seat = None

    def _flush(self, event: Event) -> None:
        self.record = None
        self.seat = self.seat if event.pick % 2 else None

    def _access(self, event: Event) -> None:
        if self.believed:
            grant = self.believed[self._chosen_belief(event)]
            session = f"{grant.ticket}@{grant.fence}"
            self.register.access(session, grant.mode, grant.fence)

    def _chosen_belief(self, event: Event) -> str:
        return list(self.believed)[-1 - event.pick % len(self.believed)]
