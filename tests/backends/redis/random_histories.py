"""Random histories of one resource: commands, foreigners, losses and time.

The history keeps the core's record, so that what it asks for is mostly about somebody:
the tickets that hold, the places that wait, the moments at which something ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aiorwlock_remote.core.commands import (
    Acquire,
    Command,
    IllegalCommand,
    Release,
    Reply,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.transition import Step, skip_unreachable, transition
from tests.backends.redis.random_commands import (
    CLIENT_IDS,
    DEAF,
    HEARING,
    MS,
    SECOND,
    Asker,
)

START = 2_200_000_000 * SECOND  # in 2039: the server itself lets nothing expire
PASSED = (1, 1, 1, 7, MS, 20 * MS, 99 * MS, 150 * MS, 1200 * MS, 5 * SECOND)
THEFTS = ("thief,5", "readers,7", "thief", "a,b,5", "t1,5", "readers", ",", "\udcff,5")
QUIETLY = (*PASSED[:5] * 6, 1200 * MS)
CALMLY = (*(0, *PASSED[:5]) * 6, 1200 * MS)  # 0: the server's clock is a coarse one
KINDS = {
    "ask": 26,
    "confirm": 8,
    "enter": 10,
    "release": 20,
    "withdraw": 6,
    "renew": 7,
    "downgrade": 5,
    "upgrade": 12,
    "adopt": 5,
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
    **dict.fromkeys(("force", "upgrade", "downgrade", "adopt", "withdraw"), 0.5),
    "release": 60,
    "hand": 25,
}
CALM = {**dict.fromkeys(KINDS, 0.5), "hand": 0.5, "cycle": 90, "withdraw": 3}
BUSY = {"ask": 30, "confirm": 25, "leave": 35, "renew": 3, "withdraw": 3, "echo": 2}


@dataclass(slots=True)
class ExpectedStep:
    """One command, and what must have become of everything. None: it is illegal."""

    command: Command
    client_id: str
    now: int
    before: list[tuple[str | bytes | int, ...]]
    reply: Reply | None
    rung: bool
    record: Doorman
    seat: MutexRecord | None
    pushed: PushedGrant | None = None
    heard: list[tuple[str, PushedGrant | None]] = field(
        default_factory=list[tuple[str, PushedGrant | None]]
    )


class RandomHistory(Asker):
    """Tells one endless history of one resource."""

    semaphore = False

    def __init__(
        self,
        seed: int,
        seat: str,
        *,
        quiet: bool = False,
        busy: bool = False,
        calm: bool = False,
    ) -> None:
        """``seat`` is the key's name. ``calm``: mostly one writer at a time."""
        super().__init__(seed, quiet=quiet or busy or calm, busy=busy)
        self._seat_key = seat
        self.least_passed = 0
        self._state_key = f"{{{seat}}}.state"
        self.now: int = START + self.chance.randrange(SECOND)
        self._before: list[tuple[str | bytes | int, ...]] = []
        self._kind = ""
        self._passed: tuple[int, ...] = QUIETLY if self.quiet else PASSED
        self._kinds = {**KINDS, **QUIET} if quiet else BUSY if busy else KINDS
        if calm:
            self._kinds, self._passed = CALM, CALMLY
        self._tick()

    def next(self) -> ExpectedStep:
        """What happens next."""
        while True:
            kinds, weights = zip(*self._kinds.items(), strict=True)
            if self._kind != "hand" or self.chance.random() < 0.3:  # or in a row
                self._kind = self.chance.choices(kinds, weights)[0]
            command = getattr(self, self._kind)()
            if command is not None:
                return self._expected_step(command)

    def _expected_step(self, command: Command) -> ExpectedStep:
        if self.chance.random() < 0.8:
            self.sent.append(command)
        self._tick()
        own = _client_id_of(command)
        if self.chance.random() < 0.3:
            own = self.chance.choice([*CLIENT_IDS, ""])
        before, self._before = self._before, []
        expected = ExpectedStep(
            command, own, self.now, before, None, False, Doorman(), self.seat
        )
        try:
            step = transition(
                *(self.record, self.seat, command, self.now, self.now),
                semaphore=self.semaphore,
            )
        except IllegalCommand:
            expected.record = self.record or Doorman()
            return expected
        expected.reply = step.reply
        step = self._call(step, own, expected)
        self.record, self.seat = step.record, _rounded(step.seat)
        expected.record, expected.seat = self.record, self.seat
        return expected

    def _call(self, step: Step, own: str, expected: ExpectedStep) -> Step:
        while step.wakes:
            pushed = None if step.pushed is None else PushedGrant.of(step.pushed)
            if own in step.wakes:
                expected.rung, expected.pushed = True, pushed
            expected.heard += [
                (g, pushed) for g in step.wakes if g in HEARING and g != own
            ]
            deaf = [g for g in step.wakes if g in DEAF and g != own]
            if not deaf:
                break
            step = skip_unreachable(step, deaf, self.now, self.now)
        return step

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        """Some time passes; often until just before, at or after something ends."""
        chance = self.chance
        then = [at for at in self._ends() if at >= self.now]
        if then and chance.random() < (0.05 if self.quiet else 0.25):
            at = chance.choice(sorted(then)[:3])
            self.now = max(self.now + 1, at + chance.choice([-1, 0, 0, 1]))
        else:
            self.now += max(self.least_passed, chance.choice(self._passed))
        seat = self.seat
        if seat and seat.expires and seat.expires <= self.now and chance.random() < 0.8:
            self._put(None)
        seconds, micros = divmod(self.now, SECOND)
        self._before.append(("HSET", "clock", "s", seconds, "u", micros))

    def _ends(self) -> list[int]:
        doorman = self.record or Doorman()
        ends = [g.expires for g in doorman.grants if g.expires]
        ends += [p.claim_until for p in doorman.queue if p.claim_until]
        ends += [p.expires for p in doorman.queue]
        ends += [doorman.admit_until, doorman.barred_until]
        if doorman.upgrader:
            ends.append(doorman.upgrader.expires)
        if self.seat and self.seat.expires:
            ends.append(self.seat.expires)
        return ends

    # ------------------------------------------------- foreigners and losses

    def _put(self, seat: MutexRecord | None) -> None:
        self.seat = seat
        if seat is None:
            self._before.append(("DEL", self._seat_key))
            return
        value = seat.value.encode("utf-8", "surrogateescape")
        at = () if seat.expires is None else ("PXAT", seat.expires // MS)
        self._before.append(("SET", self._seat_key, value, *at))

    def steal(self) -> None:
        """A foreign program takes the seat."""
        chance = self.chance
        ends = (self.now // MS + chance.choice([1, 300, 2000])) * MS
        value = chance.choice(THEFTS)
        self._put(MutexRecord(value, ends if chance.random() < 0.6 else None))

    def depart(self) -> None:
        """It leaves."""
        if self.seat and self.seat.value != (self.record or Doorman()).seat:
            self._put(None)

    def vanish(self) -> None:
        """The seat is deleted, whose ever it was."""
        self._put(None)

    def flush(self) -> None:
        """The record is lost, alone or with the rest."""
        chance = self.chance
        self.record = None
        others = [f"{{{self._seat_key}}}.{part}" for part in ("queue", "readers")]
        self._before.append(("DEL", self._state_key, *others[: chance.randrange(3)]))
        if chance.random() < 0.5:
            self._put(None)

    def newer(self) -> None:
        """A newer version of the library was here."""
        if self.record and self.record.last:
            self.record = replace(self.record, extra=(("future", "x"),))
            self._before.append(("HSET", self._state_key, "future", "x"))


def _client_id_of(command: Command) -> str:
    if isinstance(command, Release) and command.then:
        return command.then[0].client_id
    return command.client_id if isinstance(command, Acquire) else "ann"


def _rounded(seat: MutexRecord | None) -> MutexRecord | None:
    """The server keeps milliseconds, and never too few."""
    if seat is None or seat.expires is None:
        return seat
    return MutexRecord(seat.value, -(-seat.expires // MS) * MS)
