"""Several processes, one resource, any story: a machine that Hypothesis drives.

A story is a list of ``Event``; each does one thing to the world (a command, fresh, late
or repeated; a foreign program at the seat; time). Small numbers choose among what there
is, so that a failing story shrinks to a short one. Every step goes past the ``Judge``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from aiorwlock_remote.core.commands import (
    OTHER_MODE,
    Acquire,
    Claim,
    Command,
    Downgrade,
    Force,
    Granted,
    IllegalCommand,
    Refused,
    Release,
    Released,
    Renew,
    Reply,
    Upgrade,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.record import Grant, Record, Seat
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import Step, transition
from tests.core.judge import Judge, claims
from tests.core.register import Register

Transition = Callable[[Record | None, Seat | None, Command, int, int], Step]

MS, SECOND = 1_000, 1_000_000
WALL = 1_700_000_000 * SECOND
GATES = ("ann", "bob", "cid")
LEASES = (SECOND, 10 * SECOND, 3 * SECOND, None)
PASSED = (0, 0, 0, MS, 20 * MS, 150 * MS, 1200 * MS, 5 * SECOND, 11 * SECOND)
KINDS = (
    "rest",  # what a story's superfluous events shrink to
    *("acquire",) * 6,
    *("ask", "release", "access") * 3,
    *("withdraw", "renew", "downgrade", "upgrade", "echo", "send", "deliver") * 2,
    *("force", "steal", "vanish", "depart", "flush", "other_mode", "illegal"),
)


class Event(NamedTuple):
    """One thing that happens. ``heard``: the client learns the answer."""

    kind: str
    gate: int
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


class Machine:
    """The world: the stored record and seat, the clients' beliefs, the register."""

    def __init__(
        self,
        policies: list[Policy],
        *,
        transition: Transition = transition,
        purges: bool = True,
    ) -> None:
        """``purges``: the store drops a seat by itself when it expires."""
        self.record: Record | None = None
        self.seat: Seat | None = None
        self.now = SECOND
        self.steps = 0
        self.waiting: dict[str, tuple[str, Mode]] = {}
        self.believed: dict[str, Grant] = {}
        self._policies = policies
        self._transition = transition
        self._purges = purges
        self._judge = Judge(strict_calls=policies == [Policy.FAIR])
        self._register = Register()
        self._sent: list[Command] = []
        self._post: list[Command] = []
        self._tickets = 0

    def run(self, story: list[Event]) -> None:
        """Let a story happen."""
        for event in story:
            self.now += event.passed + 1
            getattr(self, f"_{event.kind}")(event)

    def step(self, command: Command) -> Step:
        """One atomic step at the store, judged, and once more to see it is no other."""
        self.now += 1
        self.steps += 1
        seat = self.seat
        if seat and self._purges and seat.expires and seat.expires <= self.now:
            seat = None
        before = self.record or Record()
        step = self._do(self.record, seat, command)
        self._judge.look(before, seat, command, step, self.now)
        self.record, self.seat = step.record, step.seat
        self._sent.append(command)
        self._repeat(command, step)
        return step

    def claim(self, pick: int = 0) -> Claim:
        """A fresh ticket."""
        self._tickets += 1
        delay = 2 * SECOND if pick == 13 else 0
        return Claim(f"t{self._tickets}", LEASES[pick % 4], lock_delay=delay)

    def hear(self, command: Command, reply: Reply) -> None:
        """The client learns the answer."""
        answers = reply.then if isinstance(reply, Released) else (reply,)
        for answer in answers:
            for grant in answer.grants if isinstance(answer, Granted) else ():
                self.believed[grant.ticket] = grant
                self.waiting.pop(grant.ticket, None)
        if isinstance(command, Release | Downgrade | Upgrade) and (
            not isinstance(reply, Granted | Released) or reply is not None
        ):
            self.believed.pop(command.ticket, None)

    def _do(self, record: Record | None, seat: Seat | None, command: Command) -> Step:
        return self._transition(record, seat, command, self.now, WALL + self.now)

    def _repeat(self, command: Command, step: Step) -> None:
        again = self._do(step.record, step.seat, command)
        reply, second = step.reply, again.reply
        if isinstance(reply, Granted):
            assert isinstance(second, Granted)
            assert set(reply.grants) <= set(second.grants)
        if isinstance(reply, Released) and command.ticket not in claims(command):
            assert isinstance(second, Released)
            assert not second.held or not reply.held
        if isinstance(reply, Withdrawn):
            assert isinstance(second, Withdrawn)
            assert not second.held
            assert again.record is step.record

    # ------------------------------------------------------------- commands

    def _rest(self, _event: Event) -> None:
        """Nothing happens."""

    def _act(self, event: Event, command: Command) -> None:
        try:
            step = self.step(command)
        except IllegalCommand:
            return
        if event.heard:
            self.hear(command, step.reply)

    def _ask_for(self, event: Event, gate: str, mode: Mode, fresh: int) -> Acquire:
        mine = [t for t, who in self.waiting.items() if who == (gate, mode)]
        asked = tuple(Claim(t, 10 * SECOND) for t in mine)
        asked += tuple(self.claim(event.pick) for _ in range(fresh))
        more = len(asked) - 1 if mode is Mode.WRITE else 0
        asked = asked[:1] if mode is Mode.WRITE else asked
        may_queue = fresh == 0 or event.pick % 4 > 0
        if may_queue:
            self.waiting |= {c.ticket: (gate, mode) for c in asked}
        return Acquire(
            asked,
            mode,
            self._policies[event.pick % len(self._policies)],
            gate=gate if may_queue else "",
            may_queue=may_queue,
            more=more if may_queue else 0,
            max_waiters=3 if event.pick == 11 else None,
        )

    def _acquire(self, event: Event) -> None:
        mode = Mode.WRITE if event.pick % 2 else Mode.READ
        fresh = 1 if mode is Mode.WRITE else 1 + event.pick // 8
        self._act(event, self._ask_for(event, GATES[event.gate], mode, fresh))

    def _carried(self, event: Event) -> tuple[Acquire, ...]:
        gate = GATES[event.gate]
        modes = [m for m in Mode if (gate, m) in self.waiting.values()]
        return tuple(self._ask_for(event, gate, mode, 0) for mode in modes)

    def _ask(self, event: Event) -> None:
        for command in self._carried(event)[:1]:
            self._act(event, command)

    def _chosen(self, event: Event) -> str:
        """Some ticket: believed, recorded, or any."""
        known = [*self.believed, *(g.ticket for g in (self.record or Record()).grants)]
        known = known or [f"t{n + 1}" for n in range(self._tickets)] or ["none"]
        return known[-1 - event.pick % len(known)]

    def _release(self, event: Event) -> None:
        mode = (None, None, Mode.READ, Mode.WRITE)[event.pick % 4]
        then = self._carried(event) if event.pick % 3 else ()
        self._act(event, Release(self._chosen(event), mode, then))

    def _withdraw(self, event: Event) -> None:
        mode = Mode.WRITE if event.pick % 2 else Mode.READ
        who = GATES[event.gate], mode
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
        self._act(event, Downgrade(self._chosen(event), self.claim(event.pick)))

    def _upgrade(self, event: Event) -> None:
        claim, gate = self.claim(event.pick), GATES[event.gate]
        may_wait = event.pick % 4 > 0
        self._act(event, Upgrade(self._chosen(event), claim, gate, may_wait))

    def _force(self, event: Event) -> None:
        if self.seat is not None and event.pick % 2:
            self._act(event, Force(seat=self.seat.value))
            return
        for grant in (self.record or Record()).grants[:1]:
            fence = grant.fence - (event.pick % 4 == 0)
            self._act(event, Force(grant.holder, fence))

    def _other_mode(self, event: Event) -> None:
        for grant in (self.record or Record()).grants[:1]:
            mode = Mode.READ if grant.mode is Mode.WRITE else Mode.WRITE
            ask = Acquire((Claim(grant.ticket, SECOND),), mode, self._policies[0])
            live = self.seat is not None and self.seat.value == self.record_seat
            live = live and not grant.dead(self.now + 1)
            reply = self.step(ask).reply
            if live:
                assert isinstance(reply, Refused)
                assert reply.why == OTHER_MODE

    def _illegal(self, event: Event) -> None:
        for grant in (self.record or Record()).grants[:1]:
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
        if self._sent:
            self._act(event, self._sent[-1 - event.pick % len(self._sent)])

    def _send(self, event: Event) -> None:
        """A request is sent, and will arrive some other time."""
        mode = Mode.WRITE if event.pick % 2 else Mode.READ
        self._post.append(self._ask_for(event, GATES[event.gate], mode, 1))

    def _deliver(self, event: Event) -> None:
        if self._post:
            self._act(event, self._post.pop(event.pick % len(self._post)))

    # -------------------------------------------------------- the seat and the rest

    @property
    def record_seat(self) -> str | None:
        """The seat value we wrote."""
        return (self.record or Record()).seat

    def _steal(self, event: Event) -> None:
        value = ("thief,5", "readers,7", "thief", "t1,5")[event.pick % 4]
        ends = self.now + 2 * SECOND if event.pick > 7 else None
        self.seat = Seat(value, ends)

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
            self._register.access(grant.ticket, grant.mode, grant.fence)

    def _chosen_belief(self, event: Event) -> str:
        return list(self.believed)[-1 - event.pick % len(self.believed)]
