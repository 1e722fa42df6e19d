"""The fast path has exactly the result of the full transition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from random import Random

import pytest

from aiorwlock_remote.core import transition as module
from aiorwlock_remote.core.commands import Acquire, Claim, Command, Release
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    PendingUpgrade,
    QueueEntry,
    Requester,
    mutex_record_value,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import FastStep, Step, fast_path, transition
from aiorwlock_remote.core.value import replace

CASES = 20_000
NOW = 1000


class Chance(Random):
    """States near those of the fast path, and commands; most fields have usual values.

    Every field that the fast path has to look at is unusual now and then.
    """

    def seldom(self) -> bool:
        return self.random() < 0.08

    def record(self) -> Doorman:
        held = self.random() < 0.6
        grants = (self.grant("t1"),) if held else ()
        if self.seldom():
            grants = (*grants, self.grant("t2"))
        queue = (QueueEntry(1, "g", self.mode(), 1, 5000, 50),) if self.seldom() else ()
        return Doorman(
            last=self.randrange(5),
            grants=grants,
            queue=queue,
            number=self.randrange(4),
            admit_upto=self.choice((0, 0, 2)),
            admit_until=self.choice((0, 0, NOW - 1, NOW + 1)),
            seat=mutex_record_value(grants, 7_000_000) if grants else None,
            turns=self.choice((0, 0, 3, 500)),
            barred_until=self.choice((NOW - 1, NOW + 1)) if self.seldom() else 0,
            upgrader=PendingUpgrade("t1", "g", NOW + 9) if self.seldom() else None,
            upgraded=self.seldom(),
            pushed=self.seldom() and len(grants) == 1 and grants[0].mode is Mode.WRITE,
            endings=(LossNote(1, "t0", "forced"),) if self.seldom() else (),
            created=self.choice((0, 5)),
            updated=self.choice((0, 6)),
            extra=(("newer", 1),) if self.seldom() else (),
        )

    def grant(self, ticket: str) -> Grant:
        expires = self.choice((None, NOW + 50, NOW + 60))
        if self.seldom():
            expires = NOW
        delay = 5 if self.seldom() else 0
        return Grant(ticket, self.mode(), 4, 900, expires, Requester("h", 1), delay)

    def mode(self) -> Mode:
        return Mode.READ if self.seldom() else Mode.WRITE

    def seat(self, record: Doorman) -> MutexRecord | None:
        if self.seldom():
            return self.choice((None, MutexRecord("thief,5"), MutexRecord("t1,6")))
        return None if record.seat is None else MutexRecord(record.seat)

    def command(self) -> Command:
        ticket = "t2" if self.seldom() else "t1"
        mode = self.mode()
        acquire = Acquire(
            (
                Claim(
                    ticket,
                    self.choice((None, 30)),
                    Requester("h", 2),
                    self.randrange(2),
                ),
            ),
            mode,
            self.choice(list(Policy)),
            client_id="g",
            may_queue=self.random() < 0.5,
            more=3 if self.seldom() else 0,
            push=mode is Mode.WRITE and self.random() < 0.5,
        )
        if self.random() < 0.4:
            confirms = mode is Mode.WRITE and self.seldom()
            return replace(acquire, confirms=confirms)
        ends = self.choice((None, None, Mode.WRITE, self.mode()))
        then = (replace(acquire, claims=(Claim("t3", 30),)),) if self.seldom() else ()
        return Release(ticket, ends, then)


def compared(
    short_cut: Callable[..., FastStep | None],
) -> Iterator[tuple[type[Command], bool]]:
    """Yield the commands that took the fast path, and whether the results agree."""
    chance = Chance(1)
    for _ in range(CASES):
        record, command = chance.record(), chance.command()
        asked = (
            record,
            chance.seat(record),
            command,
            NOW,
            chance.choice((0, 9)),
            8_000_000,
        )
        told = module._step(*asked)
        short: FastStep | None = short_cut(*asked)
        if short is not None:
            yield type(command), Step(*short) == told


def test_they_tell_what_the_transition_tells() -> None:
    taken = Counter(compared(fast_path))
    assert taken[Acquire, True] > 1000
    assert taken[Release, True] > 1000
    assert set(taken) == {(Acquire, True), (Release, True)}


@pytest.mark.parametrize("field", ["last", "number", "admit_upto", "turns", "updated"])
def test_the_comparison_finds_a_wrong_field(field: str) -> None:
    def careless(*asked: object) -> FastStep | None:
        short = fast_path(*asked)  # type: ignore[arg-type]
        if short is None:
            return None
        record, *rest = short
        changed = replace(record, **{field: getattr(record, field) + 1})
        return (changed, *rest)  # type: ignore[return-value]

    assert any(not same for _, same in compared(careless))


@pytest.mark.parametrize("field", ["queue", "upgrader", "barred_until", "endings"])
def test_the_comparison_finds_what_was_not_looked_at(field: str) -> None:
    def careless(record: Doorman, *rest: object) -> FastStep | None:
        blind = replace(record, **{field: getattr(Doorman(), field)})
        return fast_path(blind, *rest)  # type: ignore[arg-type]

    assert any(not same for _, same in compared(careless))


def test_records_of_all_kinds_are_compared() -> None:
    chance, blank = Chance(1), Doorman()
    records = [chance.record() for _ in range(CASES)]
    for field in fields(Doorman):
        usual = getattr(blank, field.name)
        assert any(getattr(record, field.name) != usual for record in records), field


def test_a_lone_writer_takes_both() -> None:
    acquire = Acquire((Claim("gluww", 5),), Mode.WRITE)
    entered = transition(None, None, acquire, 100, 0, 7_000_000)
    assert fast_path(Doorman(), None, acquire, 100, 0, 7_000_000) is not None
    left = (entered.record, entered.seat, Release("gluww"), 101, 0, 7_000_000)
    assert fast_path(*left) is not None
    assert transition(*left).seat is None
