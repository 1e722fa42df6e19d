"""The fast path has exactly the result of the full transition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from random import Random

import pytest

from aiorwlock_remote.core import transition as module
from aiorwlock_remote.core.commands import Acquire, Claim, Command, Release, Renew
from aiorwlock_remote.core.doorman import (
    MAX_LOCAL_TURNS,
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    PendingUpgrade,
    QueueEntry,
    Requester,
    mutex_record_value,
)
from aiorwlock_remote.core.fast_path import FastStep, fast_path
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import Step, transition
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
        queue = self.queue() if self.random() < 0.5 else ()
        return Doorman(
            last=self.randrange(5),
            grants=grants,
            queue=queue,
            number=self.randrange(4),
            admit_upto=self.choice((0, 0, 2)),
            admit_until=self.choice((0, 0, NOW - 1, NOW + 1)),
            seat=mutex_record_value(grants, 7_000_000) if grants else None,
            turns=self.choice((0, 3, MAX_LOCAL_TURNS - 1, 500)),
            barred_until=self.choice((NOW - 1, NOW + 1)) if self.seldom() else 0,
            upgrader=PendingUpgrade("t1", "g", NOW + 9) if self.seldom() else None,
            upgraded=self.seldom(),
            pushed=(
                self.random() < 0.4
                and len(grants) == 1
                and grants[0].mode is Mode.WRITE
                and grants[0].expires is not None
            ),
            endings=(LossNote(1, "t0", "forced"),) if self.seldom() else (),
            created=self.choice((0, 5)),
            updated=self.choice((0, 6)),
            extra=(("newer", 1),) if self.seldom() else (),
        )

    def queue(self) -> tuple[QueueEntry, ...]:
        clients = ["other", "g", "third"][: self.randrange(1, 4)]
        self.shuffle(clients)
        return tuple(self.entry(n, client) for n, client in enumerate(clients, 1))

    def entry(self, number: int, client: str) -> QueueEntry:
        mode = Mode.READ if self.random() < 0.04 else Mode.WRITE
        has_claim = mode is Mode.WRITE and self.random() < 0.9
        ticket = "t1" if self.random() < 0.1 else f"of {client}"
        return QueueEntry(
            number,
            client,
            mode,
            1,
            NOW if self.random() < 0.04 else 5000,
            self.choice((20, 50)),
            waiting=self.randrange(1, 3),
            claim_until=self.choice((NOW - 1, NOW + 9)) if self.seldom() else None,
            who=Requester("h", 3),
            ticket=ticket if has_claim else "",
            lease=30 if has_claim else 0,
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

    def following(self) -> Claim | None:
        delay = 5 if self.seldom() else 0
        claim = Claim("t4", self.choice((None, 30, 30)), Requester("h", 4), delay)
        return claim if self.random() < 0.6 else None

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
            more=3 if self.random() < 0.3 else 0,
            following=self.following() if mode is Mode.WRITE else None,
            push=mode is Mode.WRITE and self.random() < 0.5,
        )
        if self.random() < 0.4:
            confirms = mode is Mode.WRITE and self.random() < 0.4
            return replace(acquire, confirms=confirms)
        ends = self.choice((None, None, Mode.WRITE, self.mode()))
        if self.random() < 0.1:
            return Renew(((ticket, 30),))
        then = (replace(acquire, claims=(Claim("t3", 30),)),) if self.seldom() else ()
        return Release(ticket, ends, then)


def compared(
    short_cut: Callable[..., FastStep | None],
) -> Iterator[tuple[str, bool]]:
    """Yield the steps that took the fast path, and whether the results agree."""
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
        expected = module._step(*asked)
        short: FastStep | None = short_cut(*asked)
        if short is not None:
            kind = type(command).__name__
            if record.queue:
                kind = "hand over" if isinstance(command, Release) else "confirm"
            yield kind, Step(*short) == expected


def test_fast_paths_agree_with_the_transition() -> None:
    taken = Counter(compared(fast_path))
    kinds = ["Acquire", "Release", "hand over", "confirm"]
    assert all(taken[kind, True] > 100 for kind in kinds), taken
    assert set(taken) == {(kind, True) for kind in kinds}


@pytest.mark.parametrize("field", ["last", "number", "admit_upto", "turns", "updated"])
def test_the_comparison_finds_a_wrong_field(field: str) -> None:
    def careless(*asked: object) -> FastStep | None:
        short = fast_path(*asked)  # type: ignore[arg-type]
        if short is None:
            return None
        record, seat, reply, wakes, pushed = short
        changed = replace(record, **{field: getattr(record, field) + 1})
        return changed, seat, reply, wakes, pushed

    assert any(not same for _, same in compared(careless))


@pytest.mark.parametrize(
    "field", ["queue", "upgrader", "barred_until", "endings", "pushed", "upgraded"]
)
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
