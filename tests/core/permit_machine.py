"""Random histories of one semaphore, and what must hold after each of their steps."""

from __future__ import annotations

from functools import partial

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    IllegalCommand,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.permits import free_permits
from aiorwlock_remote.core.ticket import PERMITS, Mode, Policy
from aiorwlock_remote.core.transition import Step, transition
from tests.core.machine import CLIENT_IDS, Event, Machine
from tests.core.named import acquires, claims
from tests.core.step_invariants import StepInvariants
from tests.core.world import SECOND, Transition

PERMIT = Mode.PERMIT
STEP = partial(transition, semaphore=True)
NO_SEAT = MutexRecord("")
LIMITS = ((2, 2, 2), (3, 3, 3), (1, 1, 1), (3, 1, 3), (2, 3, 4))


class PermitInvariants(StepInvariants):
    """The invariants of a semaphore: those of locks that hold for it, and its own."""

    def look(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        step: Step,
        now: int,
    ) -> None:
        """Check one step."""
        super().look(before, seat, command, step, now)
        self.order(before, seat, command, step, now)
        self.all_that_is_free(command, step, now)

    def exclusion(self, after: Doorman, now: int) -> None:
        """No holder has more company than its limit allows."""
        assert all(len(after.grants) <= g.limit for g in after.grants), "too many"
        assert all(grant.mode is PERMIT for grant in after.grants)
        assert all(entry.mode is PERMIT for entry in after.queue)
        assert not any(g.dead(now) for g in after.grants)
        assert len({g.ticket for g in after.grants}) == len(after.grants)

    def fences(self, before: Doorman, after: Doorman) -> None:
        """Each permit has a fence of its own, greater than all before."""
        known = {g.ticket for g in before.grants}
        for grant in after.grants:
            if grant.ticket not in known:
                assert grant.fence > self.highest, "fences went back"
                self.highest = grant.fence
        assert after.last >= max([g.fence for g in after.grants], default=0)

    def calls(self, before: Doorman, step: Step, now: int) -> None:
        """Each called client may take a permit; each that may has been called."""
        marked = {p.number: p.claim_until for p in before.queue}
        foreign = step.seat is not None and not step.record.grants
        called: list[str] = []
        for entry in step.record.queue:
            free = 0 if foreign else free_permits(step.record, entry, now)
            offered = entry.claim_until is not None and entry.claim_until > now
            if offered and entry.claim_until != marked.get(entry.number):
                assert free > 0, "called in vain"
                called.append(entry.client_id)
            if not foreign:
                assert free == 0 or entry.claim_until is not None, "a wake-up is lost"
                assert free > 0 or not offered, "an offer that cannot be taken"
        assert sorted(step.wakes) == sorted(called)

    def is_foreign(self, before: Doorman, seat: MutexRecord | None) -> bool:
        """Our own word is nobody else's, whatever the doorman says."""
        return super().is_foreign(before, seat) and (seat or NO_SEAT).ticket != PERMITS

    def order(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        step: Step,
        now: int,
    ) -> None:
        """A client that takes a permit leaves enough for all that wait before it."""
        del seat
        known = {g.ticket for g in before.grants}
        for ask in acquires(command):
            tickets = {claim.ticket for claim in ask.claims}
            new = [g for g in step.record.grants if g.ticket in tickets - known]
            if not new:
                continue
            assert step.record.barred_until <= now, "a lock delay is ignored"
            own = before.entry(ask.client_id, PERMIT)
            if own is not None and own.expires <= now:
                own = None
            earlier = [
                p
                for p in before.queue
                if p.expires > now
                and not p.missed_claim(now)
                and (own is None or p.number < own.number)
            ]
            asked_too = {one.client_id for one in acquires(command)}
            waiting = sum(p.waiting for p in earlier if p.client_id not in asked_too)
            held = len(step.record.grants)
            assert held + waiting <= ask.limit, "an earlier client is overtaken"

    def all_that_is_free(self, command: Command, step: Step, now: int) -> None:
        """A request takes all it can; the rest of its tasks wait at the tail."""
        if not isinstance(command, Acquire) or not command.may_queue:
            return
        after = step.record
        taken = [g for t in claims(command) if (g := after.grant(t)) is not None]
        new = any(grant.since == now for grant in taken)
        if len(taken) == len(command.claims) and not new:
            return  # asked again: the entry is that of other tasks, and stays as it is
        own = after.entry(command.client_id, PERMIT)
        foreign = step.seat is not None and not after.grants
        if own is not None and not foreign:
            assert free_permits(after, own, now) == 0, "kept out by nobody"
        if own is not None and new:
            assert own is after.queue[-1], "who was served goes behind"

    def a_reason_to_wait(self, command: Command, step: Step, now: int) -> None:
        """See ``all_that_is_free``."""

    highest = 0


class PermitMachine(Machine):
    """Histories of a semaphore's clients, each with a limit of its own."""

    modes = (PERMIT,)

    def __init__(
        self,
        limits: tuple[int, ...],
        *,
        transition: Transition = STEP,
        purges: bool = True,
    ) -> None:
        super().__init__([Policy.FAIR], transition=transition, purges=purges)
        self._limits = dict(zip(CLIENT_IDS, limits, strict=True))
        self._invariants = PermitInvariants(strict_calls=True)

    def limit_of(self, client_id: str) -> int:
        return self._limits.get(client_id, max(self._limits.values()))

    def _mode(self, event: Event) -> Mode:
        del event
        return PERMIT

    def _ask_for(self, event: Event, client_id: str, mode: Mode, fresh: int) -> Acquire:
        mine = [t for t, who in self.waiting.items() if who == (client_id, mode)]
        asked = tuple(Claim(t, 10 * SECOND) for t in mine)
        asked += tuple(self.claim(event.pick) for _ in range(fresh))
        may_queue = fresh == 0 or event.pick % 4 > 0
        if may_queue:
            self.waiting |= {c.ticket: (client_id, mode) for c in asked}
        else:
            asked = asked[-1:]
        return Acquire(
            asked,
            mode,
            client_id=client_id if may_queue else "",
            may_queue=may_queue,
            waiting=len(asked),
            max_waiters=3 if event.pick == 11 else None,
            limit=self.limit_of(client_id),
        )

    def _crowd(self, event: Event) -> None:
        """All clients ask, some for several permits; then one holder leaves."""
        for client_id in CLIENT_IDS:
            self._act(
                event, self._ask_for(event, client_id, PERMIT, 1 + event.pick % 2)
            )
        self._release(event)

    def _withdraw(self, event: Event) -> None:
        who = CLIENT_IDS[event.client_id], PERMIT
        mine = [t for t, waits in self.waiting.items() if waits == who]
        keep = event.pick % 3 == 0
        tickets = tuple(mine[:1] if keep else mine)
        for ticket in tickets:
            del self.waiting[ticket]
        self._act(event, Withdraw(*who, tickets, keep=keep))

    def _steal(self, event: Event) -> None:
        super()._steal(event)
        if event.pick % 3 == 0 and self.seat is not None:
            self.seat = MutexRecord("permits,7", self.seat.expires)

    def _confirm(self, event: Event) -> None:
        """A lock's request changes nothing here."""
        before = self.record
        ask = Acquire((Claim(f"lock{event.pick}", SECOND),), Mode.WRITE)
        if self._lives():
            try:
                self.step(ask)
            except IllegalCommand:
                assert self.record is before
            else:
                raise AssertionError("a lock's request was carried out")

    def _other_mode(self, event: Event) -> None:
        self._confirm(event)

    def _access(self, event: Event) -> None:
        """No resource can refuse a permit's fence."""

    def _lives(self) -> bool:
        grants = (self.record or Doorman()).grants
        ours = self.seat is not None and self.seat.value == self.record_seat
        return ours and any(not g.dead(self.now + 1) for g in grants)
