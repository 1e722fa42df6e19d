"""Random histories of one semaphore, made as those of a lock."""

from __future__ import annotations

from dataclasses import replace

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    ForceRelease,
    Release,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.ticket import Mode
from tests.backends.redis.random_commands import CLIENT_IDS, MS
from tests.backends.redis.random_histories import RandomHistory

PERMIT = Mode.PERMIT
LIMITS = ((1,), (2,), (6,), (3, 3, 3, 2), (2, 3, 4, 9), (9, 9, 12))
KINDS = {
    "ask": 30,
    "enter": 10,
    "release": 25,
    "hand": 10,
    "withdraw": 6,
    "renew": 7,
    "downgrade": 1,
    "upgrade": 1,
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
    **dict.fromkeys(("flush", "newer", "force"), 0.1),
    **dict.fromkeys(("downgrade", "upgrade", "adopt", "withdraw", "renew"), 0.5),
    "release": 50,
}


class RandomPermitHistory(RandomHistory):
    """Tells one endless history of one semaphore.

    Quiet: a few clients that mostly come and go. Otherwise all that may happen.
    """

    semaphore = True

    def __init__(self, seed: int, seat: str, *, quiet: bool = False) -> None:
        super().__init__(seed, seat, quiet=quiet)
        self._modes = [PERMIT]
        self._kinds = {**KINDS, **QUIET} if quiet else KINDS
        self._limits = LIMITS[seed % len(LIMITS)]  # what the processes allow for now

    def _acquire(self, client_id: str, mode: Mode, *, may_queue: bool) -> Acquire:
        chance = self.chance
        if chance.random() < 0.01:
            self._limits = chance.choice(LIMITS)
        return Acquire(
            self._claims(mode),
            mode,
            client_id=client_id,
            may_queue=may_queue,
            more=chance.choice([0, 0, 1, 3]) if client_id else 0,
            waiting=chance.randint(1, 3),
            max_waiters=chance.choice([None, None, None, 2, 4, 0]),
            entry_ttl=chance.choice([4_500_000, 4_500_000, 1_000_000]),
            claim_window=chance.choice([100_000, 100_000, 10 * MS, 700 * MS]),
            limit=chance.choice(self._limits),
        )

    def _claims(self, mode: Mode) -> tuple[Claim, ...]:
        claims = super()._claims(mode)
        return claims[:1] if self.chance.random() < 0.4 else claims

    def release(self) -> Command:
        """Somebody leaves, also with a mode that is none of a semaphore."""
        mode = self.chance.choice([None, PERMIT, *Mode])
        return Release(self._ticket(), mode)

    def hand(self) -> Command:
        """Somebody leaves, and another task of its process asks."""
        command = super().hand()
        assert isinstance(command, Release)
        may_queue = self.chance.random() < 0.8
        then = tuple(replace(one, may_queue=may_queue) for one in command.then)
        return replace(command, ticket=self._ticket(), then=then)

    def withdraw(self) -> Command:
        """Somebody gives up."""
        chance = self.chance
        some = {self._ticket() for _ in range(chance.choice([0, 1, 2, 3]))}
        keep = chance.random() < 0.4
        return Withdraw(chance.choice(CLIENT_IDS), PERMIT, tuple(sorted(some)), keep)

    def force(self) -> Command:
        """Somebody breaks a lock: each permit has a fence of its own."""
        grants = (self.record or Doorman()).grants
        if not grants or self.chance.random() < 0.3:
            return super().force()
        one = self.chance.choice(grants)
        return ForceRelease(one.holder, one.fence - (self.chance.random() < 0.2))

    def steal(self) -> None:
        """A foreign program takes the seat, perhaps with our word."""
        super().steal()
        if self.seat and self.chance.random() < 0.3:
            self._put(MutexRecord("permits,7", self.seat.expires))

    def flush(self) -> None:
        """The record is lost, alone or with the rest."""
        chance = self.chance
        self.record = None
        others = [f"{{{self._seat_key}}}.{part}" for part in ("queue", "permits")]
        self._before.append(("DEL", self._state_key, *others[: chance.randrange(3)]))
        if chance.random() < 0.5:
            self._put(None)

    def _ticket(self) -> str:
        doorman = self.record or Doorman()
        if self.seat and self.seat.value != doorman.seat and self.chance.random() < 0.4:
            # A foreign program's, which may be no text.
            return self.seat.ticket if self.seat.ticket.isascii() else "thief"
        return super()._ticket()

    def _held(self) -> str:
        grants = (self.record or Doorman()).grants
        if grants and self.chance.random() < 0.5:
            return grants[0].ticket  # the oldest: perhaps about to end
        return super()._held()
