"""What must hold after every step, whatever the clients send and whenever.

Each rule is a method that raises AssertionError; ``StepInvariants.look`` applies all
of them. The rules see the stored state before and after a step, so they find a fault
at the step that makes it. The judges of histories (``testing/checker``, ``tests/judge``
and ``tests/simulation/judge``) know only what clients saw.
"""

from __future__ import annotations

from dataclasses import replace

from aiorwlock_remote.core import codec
from aiorwlock_remote.core.admission import may_enter
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Granted,
    Refused,
    Release,
    Released,
    Renew,
    Upgrade,
    Waiting,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import (
    MAX_LOCAL_TURNS,
    Doorman,
    Grant,
    MutexRecord,
)
from aiorwlock_remote.core.ticket import PERMITS, READERS, Mode, Policy
from aiorwlock_remote.core.transition import Step
from tests.core.named import acquires, claims, gives_up, names


class StepInvariants:
    """The invariants of one resource: checks steps, and remembers what rules need."""

    def __init__(self, *, strict_calls: bool) -> None:
        """``strict_calls``: all clients are fair, so that every call must be due."""
        self._strict_calls = strict_calls
        self._phases: dict[int, Mode] = {}
        self._pushable: dict[str, Claim] = {}
        self._turns = 0
        self._asked: dict[tuple[str, Mode], int] = {}

    def look(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        step: Step,
        now: int,
    ) -> None:
        """Check one step."""
        self.exclusion(step.record, now)
        self.fences(before, step.record)
        self.nothing_comes_back(before, seat, command, step.record, now)
        self.nothing_gets_lost(before, seat, command, step.record, now)
        self.the_seat(before, seat, command, step)
        self.entries(before, command, step.record, now)
        self.calls(before, step, now)
        self.pushes(before, seat, command, step, now)
        self.storage(before, step)
        self.answer(command, step)
        self.a_reason_to_wait(command, step, now)

    def exclusion(self, after: Doorman, now: int) -> None:
        """A writer is alone, no grant has run out, all are of the last phase."""
        assert len(after.grants) <= 1 or {g.mode for g in after.grants} == {Mode.READ}
        assert not any(g.dead(now) for g in after.grants)
        assert all(g.fence == after.last for g in after.grants)
        assert len({g.ticket for g in after.grants}) == len(after.grants)

    def fences(self, before: Doorman, after: Doorman) -> None:
        """A new phase has a greater fence than all before; only readers are joined."""
        for grant in set(after.grants) - set(before.grants):
            known = [g for g in before.grants if g.ticket == grant.ticket]
            if any(_same(before, g, grant) for g in known):
                continue  # renewed or confirmed
            highest = max(self._phases, default=0)
            if grant.fence > highest:
                self._phases[grant.fence] = grant.mode
            else:
                assert grant.fence == highest, "fences went back"
                assert grant.mode is Mode.READ, "a writer shares its fence"
                assert self._phases[highest] is Mode.READ

    def nothing_comes_back(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        after: Doorman,
        now: int,
    ) -> None:
        """A grant existed before, still ours and alive, or the command asked for it, or
        it was pushed. A confirmed one counts anew from the command that confirms it.
        """
        ours = seat is not None and seat.value == before.seat
        asked = claims(command)
        old = {g.ticket: g for g in before.grants if ours and not g.dead(now)}
        confirms = isinstance(command, Acquire) and command.confirms
        for grant in after.grants:
            was = old.get(grant.ticket)
            if was is not None and _same(before, was, grant):
                if grant.since != was.since:
                    assert grant.ticket in asked, "confirmed by nobody"
                    ends = _ends(asked[grant.ticket], now)
                    assert grant.expires == (ends and max(ends, was.expires or 0))
                    assert grant.since == now
                continue
            if after.pushed:
                continue  # see ``pushes``
            assert grant.ticket in asked, "a grant out of nothing"
            assert not confirms, "a confirmation grants anew"
            claim = asked[grant.ticket]
            assert (grant.since, grant.expires) == (now, _ends(claim, now))

    def nothing_gets_lost(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        after: Doorman,
        now: int,
    ) -> None:
        """A live grant of ours ends only if the command names it."""
        if seat is None or seat.value != before.seat:
            return
        for grant in before.grants:
            if not grant.dead(now) and after.grant(grant.ticket) is None:
                assert names(command, grant), "a grant is lost"

    def the_seat(
        self, before: Doorman, seat: MutexRecord | None, command: Command, step: Step
    ) -> None:
        """The mutex record names the holders; a foreign one stays as it is."""
        after = step.record
        foreign = self.is_foreign(before, seat)
        if seat is not None and foreign and not gives_up(command, seat):
            assert step.seat == seat
            assert not after.grants
            assert after.seat is None
            return
        if not after.grants:
            assert step.seat is None
            assert after.seat is None
            return
        writer = after.grants[0] if after.writing else None
        ends = [g.expires for g in after.grants]
        assert step.seat is not None
        assert step.seat.value == after.seat
        word = PERMITS if after.has_permits else READERS
        assert step.seat.ticket == (writer.ticket if writer else word)
        latest = None if None in ends else max(end for end in ends if end is not None)
        assert step.seat.expires == latest

    def is_foreign(self, before: Doorman, seat: MutexRecord | None) -> bool:
        """Return whether another program wrote the mutex record."""
        return seat is not None and seat.value != before.seat

    def entries(
        self, before: Doorman, command: Command, after: Doorman, now: int
    ) -> None:
        """Entries are in order, one for each client and mode, and end in time."""
        for ask in acquires(command):
            self._asked[ask.client_id, ask.mode] = now + ask.entry_ttl
        numbers = [p.number for p in after.queue]
        assert numbers == sorted(set(numbers))
        assert after.number >= max([before.number, *numbers])
        assert len({(p.client_id, p.mode) for p in after.queue}) == len(after.queue)
        for entry in after.queue:
            assert now < entry.expires <= self._asked[entry.client_id, entry.mode]
        if isinstance(command, Withdraw) and not command.keep:
            assert after.entry(command.client_id, command.mode) is None
        slot = after.upgrader
        assert slot is None or (after.grant(slot.ticket) and not after.writing)

    def calls(self, before: Doorman, step: Step, now: int) -> None:
        """Each called client may claim; each that may enter has been called."""
        marked = {p.number: p.claim_until for p in before.queue}
        called = [
            p.client_id
            for p in step.record.queue
            if p.claim_until is not None and p.claim_until != marked.get(p.number)
        ]
        slot, old = step.record.upgrader, before.upgrader
        if slot and slot.called and not (old and old.called):
            assert len(step.record.grants) == 1
            called.append(slot.client_id)
        assert sorted(step.wakes) == sorted(called)
        if self._strict_calls and (step.seat is None or step.record.grants):
            for entry in step.record.queue:
                if may_enter(step.record, entry, Policy.FAIR, now):
                    assert entry.claim_until is not None, "a wake-up is lost"

    def pushes(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        step: Step,
        now: int,
    ) -> None:
        """An entry's claim is granted once, for one window, and the entry stays.

        If nobody confirms the grant, no write phase ends. Tickets of waiters that left
        are not pushed.
        """
        after, pushed = step.record, step.pushed
        for ask in acquires(command):
            if ask.push:
                self._pushable[ask.claims[0].ticket] = ask.claims[0]
            if ask.following is not None:
                self._pushable[ask.following.ticket] = ask.following
        if isinstance(command, Withdraw):
            for ticket in command.tickets:
                self._pushable.pop(ticket, None)
        vacated = seat is None or seat.value != before.seat or step.seat is None
        if vacated or any(g.dead(now) for g in before.grants):
            self._turns = 0
        self._turns += pushed is not None
        assert self._turns <= MAX_LOCAL_TURNS, "the mutex record is never vacated"
        if pushed is not None:
            self._new_push(after, step, pushed, now)
        if after.pushed:
            self._still_pushed(before, after, pushed)
        if before.pushed and not _uses(command, before.grants[0].ticket):
            lives = seat is not None and seat.value == before.seat
            self._unconfirmed(before, command, after, now, lives=lives)

    def _new_push(self, after: Doorman, step: Step, pushed: Grant, now: int) -> None:
        claim = self._pushable.pop(pushed.ticket, None)
        assert claim is not None, "a ticket is pushed that was pushed before, or left"
        assert claim.lease is not None
        assert not claim.lock_delay
        assert after.pushed
        assert after.grants == (pushed,)
        (entry,) = [p for p in after.queue if p.ticket == pushed.ticket]
        assert step.wakes == (entry.client_id,)
        window = min(entry.claim_window, claim.lease)
        assert (pushed.since, pushed.expires) == (now, now + window)

    def _still_pushed(
        self, before: Doorman, after: Doorman, pushed: Grant | None
    ) -> None:
        (grant,) = after.grants
        assert grant.mode is Mode.WRITE
        assert pushed == grant or (before.pushed and before.grants == after.grants)
        for entry in after.queue:
            if entry.ticket == grant.ticket:
                assert entry.claim_until == grant.expires, "offered anew"

    def _unconfirmed(
        self,
        before: Doorman,
        command: Command,
        after: Doorman,
        now: int,
        *,
        lives: bool,
    ) -> None:
        grant = before.grants[0]
        lives = lives and not grant.dead(now)
        if after.grant(grant.ticket) is not None:
            return
        if not _brings_back(command, grant.ticket):
            assert not any(p.ticket == grant.ticket for p in after.queue)
        number = {p.number: p for p in after.queue}
        waits = [
            p
            for p in before.queue
            if p.mode is Mode.WRITE
            and p.number in number
            and p.ticket != grant.ticket
            and not p.missed_claim(now)
        ]
        if waits:
            assert after.admit_upto <= before.admit_upto, "it was no write phase"
        if isinstance(command, Withdraw) and lives:  # given back, so offered anew
            for p in before.queue:
                if p.ticket == grant.ticket and p.number in number:
                    assert number[p.number].claim_until != p.claim_until

    def storage(self, before: Doorman, step: Step) -> None:
        """A stored doorman is read back equal; an unchanged one is the same object."""
        assert codec.loads(codec.dumps(step.record)) == step.record
        if step.record is not before and before != Doorman():
            created, updated = before.created, before.updated
            assert replace(step.record, created=created, updated=updated) != before

    def answer(self, command: Command, step: Step) -> None:
        """The reply says what the doorman records."""
        reply, after = step.reply, step.record
        answers = reply.then if isinstance(reply, Released) else (reply,)
        for answer in answers:
            if isinstance(answer, Granted):
                assert all(g in after.grants for g in answer.grants)
        moves = isinstance(command, Downgrade | Upgrade | Adopt)
        if moves and isinstance(reply, Granted):
            assert [g.ticket for g in reply.grants] == [*claims(command)], "one for two"
        if isinstance(command, Release) and command.ticket not in claims(command):
            # Pushed: an entry had the ticket, because an old acquire came again.
            ours = command.mode is not None or step.pushed is not None
            assert ours or after.grant(command.ticket) is None
        if isinstance(reply, Withdrawn) and isinstance(command, Withdraw):
            assert not any(after.grant(ticket) for ticket in command.tickets)

    def a_reason_to_wait(self, command: Command, step: Step, now: int) -> None:
        """A client waits for a free resource only if it is offered to another."""
        after = step.record
        fair = isinstance(command, Acquire) and command.policy is Policy.FAIR
        was_refused_to_wait = isinstance(step.reply, Refused | Waiting)
        free = step.seat is None and after.barred_until <= now
        if fair and was_refused_to_wait and free:
            assert isinstance(command, Acquire)
            assert any(
                p.claim_until is None or p.claim_until > now
                for p in after.queue
                if (p.client_id, p.mode) != (command.client_id, command.mode)
            ), "kept out by nobody"


def _same(before: Doorman, old: Grant, new: Grant) -> bool:
    since = new.since if before.pushed else old.since
    return replace(old, expires=new.expires, since=since) == new


def _ends(claim: Claim, now: int) -> int | None:
    return None if claim.lease is None else now + claim.lease


def _uses(command: Command, ticket: str) -> bool:
    """Return whether a command shows that the holder of this ticket uses its grant."""
    match command:
        case Acquire():
            return any(claim.ticket == ticket for claim in command.claims)
        case Release():
            asked = any(_uses(ask, ticket) for ask in command.then)
            return asked or command.ticket == ticket
        case Downgrade() | Upgrade() | Adopt():
            return command.ticket == ticket
        case Renew():
            return ticket in dict(command.tickets)
        case _:
            return False


def _brings_back(command: Command, ticket: str) -> bool:
    """Return whether a command queues this ticket, whose grant was pushed and ended:
    an old request that arrives once more
    (test_an_old_request_may_bring_back_a_ticket_that_was_pushed).
    """
    following = [ask.following for ask in acquires(command)]
    return any(claim is not None and claim.ticket == ticket for claim in following)
