"""Random stories of one resource: commands, foreigners, losses and time.

The teller keeps the core's record, so that what it asks for is mostly about somebody:
the tickets that hold, the places that wait, the moments at which something ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Downgrade,
    Force,
    IllegalCommand,
    Release,
    Renew,
    Reply,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.record import NOBODY, Record, Seat, Who
from aiorwlock_remote.core.ticket import Mode, Policy, holder_of
from aiorwlock_remote.core.transition import Step, transition, unheard

MS, SECOND = 1_000, 1_000_000
START = 2_200_000_000 * SECOND  # in 2039: the server itself lets nothing expire
HEARING, DEAF = ("ann", "bob", "eve"), ("cid", "dan")
GATES = (*HEARING, *DEAF)
PEOPLE = (NOBODY, Who("höst,1", 7, "task;x", 'a "reason", rather'), Who("h", 8, "t"))
LEASES = (SECOND, 10 * SECOND, 3 * SECOND + 7, None, 300)
PASSED = (1, 1, 1, 7, MS, 20 * MS, 99 * MS, 150 * MS, 1200 * MS, 5 * SECOND)
THEFTS = ("thief,5", "readers,7", "thief", "a,b,5", "t1,5", "readers", ",", "\udcff,5")
KINDS = {
    "ask": 26,
    "enter": 10,
    "release": 20,
    "withdraw": 6,
    "renew": 7,
    "downgrade": 5,
    "upgrade": 9,
    "force": 3,
    "echo": 5,
    "steal": 2,
    "depart": 4,
    "vanish": 1,
    "flush": 1,
    "newer": 1,
}
QUIET = {
    **dict.fromkeys(("steal", "vanish", "flush", "newer"), 0.1),
    **dict.fromkeys(("force", "upgrade", "downgrade", "withdraw"), 0.5),
    "release": 40,
    "hand": 25,
}


@dataclass(slots=True)
class Told:
    """One command, and what must have become of everything. None: it is illegal."""

    command: Command
    gate: str
    now: int
    before: list[tuple[str | bytes | int, ...]]
    reply: Reply | None
    rung: bool
    record: Record
    seat: Seat | None
    heard: list[str] = field(default_factory=list[str])


class Teller:
    """Tells one endless story of one resource. ``quiet``: mostly one process,
    few surprises: what the short cuts of the scripts are for."""

    def __init__(self, seed: int, seat: str, *, quiet: bool = False) -> None:
        """``seat`` is the key's name."""
        self._random = Random(seed)
        self._seat_key = seat
        self._state_key = f"{{{seat}}}.state"
        self._quiet = quiet
        self.record: Record | None = None
        self.seat: Seat | None = None
        self.now = START + self._random.randrange(SECOND)
        self._tickets = 0
        self._sent: list[Command] = []
        self._before: list[tuple[str | bytes | int, ...]] = []
        self._policies = self._random.choice([list(Policy), [Policy.FAIR]])
        # A quiet resource is a mutex, or read, or both.
        some = [[Mode.WRITE], [Mode.READ], list(Mode)] if quiet else [list(Mode)]
        self._modes = some[seed % len(some)]
        self._gates = ("ann",) * 6 + GATES[:2] if quiet else GATES
        self._kinds = {**KINDS, **QUIET} if quiet else KINDS
        self._tick()

    def next(self) -> Told:
        """What happens next."""
        while True:
            kinds, weights = zip(*self._kinds.items(), strict=True)
            kind = self._random.choices(kinds, weights)[0]
            command = getattr(self, f"_{kind}")()
            if command is not None:
                return self._told(command)

    def _told(self, command: Command) -> Told:
        if self._random.random() < 0.8:
            self._sent.append(command)
        self._tick()
        own = _gate_of(command)
        if self._random.random() < 0.3:
            own = self._random.choice([*GATES, ""])
        before, self._before = self._before, []
        told = Told(command, own, self.now, before, None, False, Record(), self.seat)  # noqa: FBT003
        try:
            step = transition(self.record, self.seat, command, self.now, self.now)
        except IllegalCommand:
            told.record = self.record or Record()
            return told
        told.reply = step.reply
        step = self._call(step, own, told)
        self.record, self.seat = step.record, _rounded(step.seat)
        told.record, told.seat = self.record, self.seat
        return told

    def _call(self, step: Step, own: str, told: Told) -> Step:
        while step.wakes:
            told.rung = told.rung or own in step.wakes
            told.heard += [g for g in step.wakes if g in HEARING and g != own]
            deaf = [g for g in step.wakes if g in DEAF and g != own]
            if not deaf:
                break
            step = unheard(step, deaf, self.now)
        return step

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        """Some time passes; often until just before, at or after something ends."""
        chance = self._random
        then = [at for at in self._ends() if at >= self.now]
        if then and chance.random() < (0.05 if self._quiet else 0.25):
            at = chance.choice(sorted(then)[:3])
            self.now = max(self.now + 1, at + chance.choice([-1, 0, 0, 1]))
        else:
            self.now += chance.choice(PASSED[:5] if self._quiet else PASSED)
        seat = self.seat
        if seat and seat.expires and seat.expires <= self.now and chance.random() < 0.8:
            self._put(None)
        seconds, micros = divmod(self.now, SECOND)
        self._before.append(("HSET", "clock", "s", seconds, "u", micros))

    def _ends(self) -> list[int]:
        door = self.record or Record()
        ends = [g.expires for g in door.grants if g.expires]
        ends += [p.claim_until for p in door.queue if p.claim_until]
        ends += [p.expires for p in door.queue]
        ends += [door.admit_until, door.barred_until]
        if door.upgrader:
            ends.append(door.upgrader.expires)
        if self.seat and self.seat.expires:
            ends.append(self.seat.expires)
        return ends

    # -------------------------------------------------------------- commands

    def _claim(self) -> Claim:
        self._tickets += 1
        chance = self._random
        rare = 0.01 if self._quiet else 0.08
        delay = 2 * SECOND if chance.random() < rare else 0
        lease = chance.choice(LEASES[:3] if self._quiet else LEASES)
        return Claim(f"t{self._tickets}", lease, chance.choice(PEOPLE), delay)

    def _claims(self, mode: Mode) -> tuple[Claim, ...]:
        chance = self._random
        if mode is Mode.WRITE:
            count = 1
        else:
            count = chance.choice([1, 1, 1, 1 if self._quiet else 7, 2, 3])
        claims = [self._claim() for _ in range(count)]
        if chance.random() < (0.02 if self._quiet else 0.12):
            claims[0] = replace(claims[0], ticket=self._known())
        if chance.random() < 0.1 and count > 1:
            held = self._held()
            claims[-1] = replace(claims[-1], ticket=held)
        unique = {claim.ticket: claim for claim in claims}
        return tuple(unique.values())

    def _ticket(self) -> str:
        """Somebody's, held or not; or what stands in a foreign seat."""
        chance = self._random
        return (
            chance.choice(["thief", "a,b"]) if chance.random() < 0.1 else self._known()
        )

    def _known(self) -> str:
        """A ticket of ours, held or not."""
        chance = self._random
        if chance.random() < (0.9 if self._quiet else 0.6):
            return self._held()
        return f"t{chance.randint(1, self._tickets + 1)}"

    def _held(self) -> str:
        grants = (self.record or Record()).grants
        return self._random.choice(grants).ticket if grants else f"t{self._tickets}"

    def _acquire(self, gate: str, mode: Mode, *, may_queue: bool) -> Acquire:
        chance = self._random
        more = chance.choice([0, 0, 1, 3]) if gate and may_queue else 0
        return Acquire(
            self._claims(mode),
            mode,
            chance.choice(self._policies),
            gate=gate,
            may_queue=may_queue,
            more=more,
            waiting=chance.randint(1, 3),
            max_waiters=chance.choice([None, None, None, 2, 4, 0]),
            place_life=chance.choice([4_500_000, 4_500_000, SECOND]),
            window=chance.choice([100_000, 100_000, 10 * MS, 700 * MS]),
        )

    def _mode(self) -> Mode:
        return self._random.choice(self._modes)

    def _ask(self) -> Command:
        gate = self._random.choice(self._gates)
        return self._acquire(gate, self._mode(), may_queue=True)

    def _enter(self) -> Command:
        gate = self._random.choice(["", *self._gates])
        return self._acquire(gate, self._mode(), may_queue=False)

    def _release(self) -> Command:
        chance = self._random
        gate = chance.choice(self._gates)
        modes = chance.choice([(), (), (Mode.WRITE,), (Mode.READ,), tuple(Mode)])
        if self._quiet:
            modes = ()
        then = tuple(
            self._acquire(gate, mode, may_queue=chance.random() < 0.8) for mode in modes
        )
        mode = chance.choice([None, None, None, *Mode])
        return Release(self._ticket(), mode, then)

    def _hand(self) -> Command:
        """Inside one process, from a writer to the next."""
        gate = self._random.choice(self._gates)
        ask = self._acquire(gate, self._modes[0], may_queue=True)
        return Release(self._held(), None, (ask,))

    def _withdraw(self) -> Command:
        chance = self._random
        some = {self._ticket() for _ in range(chance.choice([0, 1, 2, 3]))}
        slot = (self.record or Record()).upgrader
        upgrader = slot.ticket if slot and chance.random() < 0.4 else ""
        return Withdraw(
            chance.choice(GATES),
            chance.choice(list(Mode)),
            tuple(sorted(some)),
            keep=chance.random() < 0.4,
            upgrader=upgrader,
        )

    def _renew(self) -> Command:
        chance = self._random
        tickets = [self._ticket() for _ in range(chance.choice([1, 1, 2, 5]))]
        return Renew(tuple((t, chance.choice(LEASES)) for t in tickets))

    def _downgrade(self) -> Command:
        return Downgrade(self._held(), self._moving())

    def _upgrade(self) -> Command:
        chance = self._random
        door = self.record or Record()
        ticket = self._ticket()
        if door.upgrader and chance.random() < 0.4:
            ticket = door.upgrader.ticket
        life = chance.choice([4_500_000, SECOND])
        wait = chance.random() < 0.7
        return Upgrade(ticket, self._moving(), chance.choice(GATES), wait, life)

    def _moving(self) -> Claim:
        claim = self._claim()
        if self._random.random() < 0.1:
            return replace(claim, ticket=self._known())
        return claim

    def _force(self) -> Command:
        chance = self._random
        if self.seat and chance.random() < 0.4:
            wrong = "" if chance.random() < 0.8 else "x"
            return Force(seat=self.seat.value + wrong)
        fence = (self.record or Record()).last - (chance.random() < 0.2)
        return Force(holder_of(self._ticket()), fence)

    def _echo(self) -> Command | None:
        return self._random.choice(self._sent[-12:]) if self._sent else None

    # ------------------------------------------------- foreigners and losses

    def _put(self, seat: Seat | None) -> None:
        self.seat = seat
        if seat is None:
            self._before.append(("DEL", self._seat_key))
            return
        value = seat.value.encode("utf-8", "surrogateescape")
        at = () if seat.expires is None else ("PXAT", seat.expires // MS)
        self._before.append(("SET", self._seat_key, value, *at))

    def _steal(self) -> None:
        chance = self._random
        ends = (self.now // MS + chance.choice([1, 300, 2000])) * MS
        value = chance.choice(THEFTS)
        self._put(Seat(value, ends if chance.random() < 0.6 else None))

    def _depart(self) -> None:
        if self.seat and self.seat.value != (self.record or Record()).seat:
            self._put(None)

    def _vanish(self) -> None:
        self._put(None)

    def _flush(self) -> None:
        """The record is lost, alone or with the rest."""
        chance = self._random
        self.record = None
        others = [f"{{{self._seat_key}}}.{part}" for part in ("queue", "readers")]
        self._before.append(("DEL", self._state_key, *others[: chance.randrange(3)]))
        if chance.random() < 0.5:
            self._put(None)

    def _newer(self) -> None:
        """A newer version of the library was here."""
        if self.record and self.record.last:
            self.record = replace(self.record, extra=(("future", "x"),))
            self._before.append(("HSET", self._state_key, "future", "x"))


def _gate_of(command: Command) -> str:
    if isinstance(command, Release) and command.then:
        return command.then[0].gate
    return command.gate if isinstance(command, Acquire) else "ann"


def _rounded(seat: Seat | None) -> Seat | None:
    """The server keeps milliseconds, and never too few."""
    if seat is None or seat.expires is None:
        return seat
    return Seat(seat.value, -(-seat.expires // MS) * MS)
