"""Random commands about one resource, mostly about somebody who is there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import (
    UNKNOWN_REQUESTER,
    Doorman,
    MutexRecord,
    Requester,
)
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy, holder_of

MS, SECOND = 1_000, 1_000_000
HEARING, DEAF = ("ann", "bob", "eve"), ("cid", "dan")
CLIENT_IDS = (*HEARING, *DEAF)
PEOPLE = (
    UNKNOWN_REQUESTER,
    Requester("höst,1", 7, "task;x", 'a "reason", rather'),
    Requester("h", 8, "t"),
)
LEASES = (SECOND, 10 * SECOND, 3 * SECOND + 7, None, 300)


class Asker:
    """Asks at random. ``quiet``: mostly one process, few surprises.

    A quiet resource is a mutex, or read, or both: what the scripts' short cuts are for.
    ``busy``: a mutex that goes from process to process by pushed grants.
    """

    def __init__(self, seed: int, *, quiet: bool, busy: bool = False) -> None:
        self.record: Doorman | None = None
        self.seat: MutexRecord | None = None
        self.quiet: bool = quiet
        # Whether half of the renewals are exact.
        self.exact: bool = False
        self.chance: Random = Random(seed)
        self.sent: list[Command] = []
        self._tickets = 0
        some = (
            [[Mode.WRITE], [Mode.READ], list(LOCK_MODES)]
            if quiet
            else [list(LOCK_MODES)]
        )
        self._modes = some[seed % len(some)]
        self._client_ids: tuple[str, ...] = (
            ("ann",) * 6 + CLIENT_IDS[:2] if quiet else CLIENT_IDS
        )
        # Some clients hear no messages, or their store pushes nothing.
        self._pushes = self.chance.choice([0.2, 0.5, 0.9])
        self._policies = self.chance.choice([list(Policy), [Policy.FAIR]])
        if busy:
            self._modes, self._policies = [Mode.WRITE], [Policy.FAIR]
            self._client_ids, self._pushes = (*HEARING, DEAF[0]), 0.9

    def _claim(self) -> Claim:
        self._tickets += 1
        chance = self.chance
        rare = 0.01 if self.quiet else 0.08
        delay = 2 * SECOND if chance.random() < rare else 0
        lease = chance.choice(LEASES[:3] if self.quiet else LEASES)
        return Claim(f"t{self._tickets}", lease, chance.choice(PEOPLE), delay)

    def _claims(self, mode: Mode) -> tuple[Claim, ...]:
        chance = self.chance
        if mode is Mode.WRITE:
            count = 1
        else:
            count = chance.choice([1, 1, 1, 1 if self.quiet else 7, 2, 3])
        claims = [self._claim() for _ in range(count)]
        if chance.random() < (0.02 if self.quiet else 0.12):
            claims[0] = replace(claims[0], ticket=self._known())
        if chance.random() < 0.1 and count > 1:
            held = self._held()
            claims[-1] = replace(claims[-1], ticket=held)
        unique = {claim.ticket: claim for claim in claims}
        return tuple(unique.values())

    def _next_claim(self) -> Claim | None:
        if self.chance.random() > self._pushes / 2:
            return None
        # Most of these delays are in the way of a short cut.
        delay = 2 * SECOND if self.chance.random() < 0.2 else 0
        return replace(self._claim(), lock_delay=delay)

    def _ticket(self) -> str:
        """Somebody's, held or not; or what stands in a foreign seat."""
        chance = self.chance
        return (
            chance.choice(["thief", "a,b"]) if chance.random() < 0.1 else self._known()
        )

    def _known(self) -> str:
        """A ticket of ours, held or not."""
        chance = self.chance
        if chance.random() < (0.9 if self.quiet else 0.6):
            return self._held()
        return f"t{chance.randint(1, self._tickets + 1)}"

    def _held(self) -> str:
        grants = (self.record or Doorman()).grants
        return self.chance.choice(grants).ticket if grants else f"t{self._tickets}"

    def _acquire(self, client_id: str, mode: Mode, *, may_queue: bool) -> Acquire:
        chance = self.chance
        more = chance.choice([0, 0, 1, 3]) if client_id and may_queue else 0
        writes = mode is Mode.WRITE
        return Acquire(
            self._claims(mode),
            mode,
            chance.choice(self._policies),
            client_id=client_id,
            may_queue=may_queue,
            more=more,
            waiting=chance.randint(1, 3),
            max_waiters=chance.choice([None, None, None, 2, 4, 0]),
            entry_ttl=chance.choice([4_500_000, 4_500_000, SECOND]),
            claim_window=chance.choice([100_000, 100_000, 10 * MS, 700 * MS]),
            push=writes and chance.random() < self._pushes,
            following=self._next_claim() if writes else None,
        )

    def _mode(self) -> Mode:
        return self.chance.choice(self._modes)

    def ask(self) -> Command:
        """A process waits."""
        client_id = self.chance.choice(self._client_ids)
        return self._acquire(client_id, self._mode(), may_queue=True)

    def confirm(self) -> Command:
        """A process uses a grant that was pushed to it, or has long lost it."""
        chance = self.chance
        client_id = chance.choice(self._client_ids)
        asked = self._acquire(client_id, Mode.WRITE, may_queue=True)
        ticket = self._held() if chance.random() < 0.8 else self._offered()
        if self.seat and self.seat.value[:1] == "t" and chance.random() < 0.15:
            ticket = self.seat.ticket  # perhaps its doorman was lost
        client_id = self._owner({ticket}, client_id)
        asked = replace(asked, client_id=client_id)
        claim = replace(asked.claims[0], ticket=ticket)
        if chance.random() < 0.1:  # less than the offer gave already
            claim = replace(claim, lease=300)
        confirms = chance.random() < 0.8
        return replace(asked, claims=(claim,), confirms=confirms)

    def _owner(self, tickets: set[str], other: str) -> str:
        """Who has one of the tickets in its place: nobody else ever names it."""
        queue = (self.record or Doorman()).queue
        owners = [place.client_id for place in queue if place.ticket in tickets]
        return owners[0] if owners else other

    def _offered(self) -> str:
        """A ticket that a process may be pushed, if there is one."""
        tickets = [p.ticket for p in (self.record or Doorman()).queue if p.ticket]
        return self.chance.choice(tickets) if tickets else self._known()

    def enter(self) -> Command:
        """Somebody tries once."""
        client_id = self.chance.choice(["", *self._client_ids])
        return self._acquire(client_id, self._mode(), may_queue=False)

    def release(self) -> Command:
        """Somebody leaves."""
        chance = self.chance
        client_id = chance.choice(self._client_ids)
        modes = chance.choice([(), (), (Mode.WRITE,), (Mode.READ,), tuple(LOCK_MODES)])
        if self.quiet:
            modes = ()
        then = tuple(
            self._acquire(client_id, mode, may_queue=chance.random() < 0.8)
            for mode in modes
        )
        mode = chance.choice([None, None, None, *LOCK_MODES])
        return Release(self._ticket(), mode, then)

    def hand(self) -> Command:
        """Inside one process, from a writer to the next."""
        client_id = self.chance.choice(self._client_ids)
        ask = self._acquire(client_id, self._modes[0], may_queue=True)
        return Release(self._held(), None, (ask,))

    def leave(self) -> Command:
        """The holder leaves."""
        return Release(self._held())

    def cycle(self) -> Command:
        """One process enters a free resource, mostly to write, and leaves it."""
        if self.record and self.record.grants:
            return self.leave()
        mode = Mode.READ if self.chance.random() < 0.05 else Mode.WRITE
        return Acquire((self._claim(),), mode, client_id="ann", may_queue=True)

    def withdraw(self) -> Command:
        """Somebody gives up."""
        chance = self.chance
        some = {self._ticket() for _ in range(chance.choice([0, 1, 2, 3]))}
        if chance.random() < 0.3:
            some.add(self._offered())
        elif (self.record or Doorman()).pushed:
            some.add(self._held())
        slot = (self.record or Doorman()).upgrader
        upgrader = slot.ticket if slot and chance.random() < 0.4 else ""
        client_id = self._owner(some, chance.choice(CLIENT_IDS))
        queue = (self.record or Doorman()).queue
        some -= {p.ticket for p in queue if p.ticket and p.client_id != client_id}
        return Withdraw(
            client_id,
            chance.choice(list(LOCK_MODES)),
            tuple(sorted(some)),
            keep=chance.random() < 0.4,
            upgrader=upgrader,
        )

    def renew(self) -> Command:
        """Leases are renewed."""
        chance = self.chance
        tickets = [self._ticket() for _ in range(chance.choice([1, 1, 2, 5]))]
        renewed = tuple((t, chance.choice(LEASES)) for t in tickets)
        return Renew(renewed, exact=self.exact and chance.random() < 0.5)

    def downgrade(self) -> Command:
        """A writer becomes a reader."""
        return Downgrade(self._held(), self._moving())

    def upgrade(self) -> Command:
        """A reader becomes a writer."""
        chance = self.chance
        doorman = self.record or Doorman()
        ticket = self._ticket()
        if doorman.upgrader and chance.random() < 0.6:
            ticket = chance.choice([doorman.upgrader.ticket, self._held()])
        life = chance.choice([4_500_000, SECOND])
        wait = chance.random() < 0.7
        return Upgrade(ticket, self._moving(), chance.choice(CLIENT_IDS), wait, life)

    def adopt(self) -> Command:
        """Somebody takes over what another had."""
        return Adopt(self._known(), self._moving())

    def _moving(self) -> Claim:
        claim = self._claim()
        if self.chance.random() < 0.1:
            return replace(claim, ticket=self._known())
        return claim

    def force(self) -> Command:
        """Somebody breaks a lock."""
        chance = self.chance
        if self.seat and chance.random() < 0.4:
            wrong = "" if chance.random() < 0.8 else "x"
            return ForceRelease(seat=self.seat.value + wrong)
        fence = (self.record or Doorman()).last - (chance.random() < 0.2)
        return ForceRelease(holder_of(self._ticket()), fence)

    def echo(self) -> Command | None:
        """A command comes once more."""
        return self.chance.choice(self.sent[-12:]) if self.sent else None
