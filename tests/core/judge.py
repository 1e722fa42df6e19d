"""What must hold after every step, whatever the clients send and whenever.

Each rule is a method that raises AssertionError; ``Judge.look`` applies all of them.
"""

from __future__ import annotations

from dataclasses import replace

from aiorwlock_remote.core import codec
from aiorwlock_remote.core.admission import may_enter
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Command,
    Downgrade,
    Granted,
    Refused,
    Release,
    Released,
    Upgrade,
    Waiting,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.ticket import READERS, Mode, Policy
from aiorwlock_remote.core.transition import Step
from tests.core.named import acquires, claims, gives_up, names


class Judge:
    """The judge of one resource: checks its steps, and remembers what rules need."""

    def __init__(self, *, strict_calls: bool) -> None:
        """``strict_calls``: all clients are fair, so that every call must be due."""
        self._strict_calls = strict_calls
        self._phases: dict[int, Mode] = {}
        self._asked: dict[tuple[str, Mode], int] = {}

    def look(
        self,
        before: Doorman,
        seat: MutexRecord | None,
        command: Command,
        step: Step,
        now: int,
    ) -> None:
        """Judge one step."""
        self.exclusion(step.record, now)
        self.fences(before, step.record)
        self.nothing_comes_back(before, seat, command, step.record, now)
        self.nothing_gets_lost(before, seat, command, step.record, now)
        self.the_seat(before, seat, command, step)
        self.places(before, command, step.record, now)
        self.calls(before, step, now)
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
            if any(_same(g, grant) for g in known):
                continue  # renewed
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
        """A grant existed before, still ours and alive, or the command asked for it."""
        ours = seat is not None and seat.value == before.seat
        asked = claims(command)
        old = {g.ticket: g for g in before.grants if ours and not g.dead(now)}
        for grant in after.grants:
            if grant.ticket in old and _same(old[grant.ticket], grant):
                continue
            assert grant.ticket in asked, "a grant out of nothing"
            claim = asked[grant.ticket]
            ends = None if claim.lease is None else now + claim.lease
            assert (grant.since, grant.expires) == (now, ends)

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
        foreign = seat is not None and seat.value != before.seat
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
        assert step.seat.ticket == (writer.ticket if writer else READERS)
        latest = None if None in ends else max(end for end in ends if end is not None)
        assert step.seat.expires == latest

    def places(
        self, before: Doorman, command: Command, after: Doorman, now: int
    ) -> None:
        """Entries are in order, one for each client and mode, and end in time."""
        for ask in acquires(command):
            self._asked[ask.client_id, ask.mode] = now + ask.entry_ttl
        numbers = [p.number for p in after.queue]
        assert numbers == sorted(set(numbers))
        assert after.number >= max([before.number, *numbers])
        assert len({(p.client_id, p.mode) for p in after.queue}) == len(after.queue)
        for place in after.queue:
            assert now < place.expires <= self._asked[place.client_id, place.mode]
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
            for place in step.record.queue:
                if may_enter(step.record, place, Policy.FAIR, now):
                    assert place.claim_until is not None, "a wake-up is lost"

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
            assert command.mode is not None or after.grant(command.ticket) is None
        if isinstance(reply, Withdrawn) and isinstance(command, Withdraw):
            assert not any(after.grant(ticket) for ticket in command.tickets)

    def a_reason_to_wait(self, command: Command, step: Step, now: int) -> None:
        """A client waits for a free resource only if it is offered to another."""
        after = step.record
        fair = isinstance(command, Acquire) and command.policy is Policy.FAIR
        told_to_wait = isinstance(step.reply, Refused | Waiting)
        free = step.seat is None and after.barred_until <= now
        if fair and told_to_wait and free:
            assert isinstance(command, Acquire)
            assert any(
                p.claim_until is None or p.claim_until > now
                for p in after.queue
                if (p.client_id, p.mode) != (command.client_id, command.mode)
            ), "kept out by nobody"


def _same(old: Grant, new: Grant) -> bool:
    return replace(old, expires=new.expires) == new
