"""Pending → using: every interleaving of two and three contenders, and random ones."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.core.occupancy import (
    FIRST,
    Ages,
    Answer,
    Do,
    Move,
    Record,
    after,
    thing_of,
)
from tests.core.occupancy_interleavings import (
    AGES,
    Contender,
    Explored,
    Game,
    Rule,
    World,
    confirming,
    early_return,
    explore,
    never_aged,
    wrong_order,
)

ROWS = {
    ("none", "none"),
    ("none", "pending"),
    ("none", "using"),
    ("pending", "pending"),
    ("pending", "using"),
}
"""The published table: the pairs that there may be."""

NEW, OLD = Record("a", 1.0), Record("b", 11.0)


def rows(found: Explored) -> set[tuple[str, ...]]:
    return {tuple(sorted(world.row)) for world in found.worlds}


def test_two_contenders_never_leave_the_published_table() -> None:
    found = explore(Game(), 2)
    assert rows(found) == ROWS
    assert found.violated == []
    assert found.stuck() == set()


@pytest.mark.slow
def test_three_contenders() -> None:
    found = explore(Game(), 3)
    assert all(row.count("using") <= 1 for row in rows(found))
    assert ("pending", "pending", "using") in rows(found)
    assert found.violated == []
    assert found.stuck() == set()


@pytest.mark.parametrize("crashes", [1, 2])
def test_who_crashes_or_is_slow_blocks_nobody_for_ever(crashes: int) -> None:
    found = explore(Game(crashes=crashes, agings=2), 2)
    assert found.violated == []
    assert found.stuck() == set()


def test_a_look_that_is_old_needs_another_one() -> None:
    found = explore(Game(rule=confirming, caches=True, crashes=1, agings=1), 2)
    assert found.violated == []
    assert found.stuck() == set()


def test_control_usings_looked_at_first() -> None:
    assert explore(Game(rule=wrong_order), 2).violated


def test_control_the_published_early_return_blocks_everybody() -> None:
    found = explore(Game(rule=early_return), 2)
    assert found.violated == []
    assert found.stuck(), "though nobody crashed"


def test_control_without_ages_the_dead_block_everybody() -> None:
    assert explore(Game(rule=never_aged, crashes=1), 2).stuck()


def test_control_a_dropped_pending_must_not_become_using() -> None:
    assert explore(Game(blind=True, agings=1), 2).violated


def test_control_an_old_look_that_nothing_confirms() -> None:
    assert explore(Game(caches=True), 2).violated


SCHEDULES = 10_000


@pytest.mark.slow
def test_random_schedules_of_many_contenders() -> None:
    """Two to five of them; some crash, some are slow; and still they use it."""
    chance = Random(8)
    counted: Counter[str] = Counter()
    for number in range(SCHEDULES):
        game = Game(crashes=2, agings=2)
        world = World(tuple(Contender() for _ in range(2 + number % 4)))
        for _ in range(40):
            what, world = game.any_step(world, chance)
            assert not world.violated, (number, what, world)
            counted[what.partition(" ")[2]] += 1
    seldom = min(counted[what] for what in ("using", "crashes", "rest", "busy"))
    assert seldom > SCHEDULES / 100, counted


@pytest.mark.parametrize("rule", [wrong_order, early_return])
def test_control_random_schedules_find_what_is_wrong(rule: Rule) -> None:
    chance = Random(8)
    game = Game(rule=rule)
    for _ in range(SCHEDULES):
        world = World((Contender(), Contender()))
        last_use = 0
        for step in range(400):
            what, world = game.any_step(world, chance)
            last_use = step if what.endswith("using") else last_use
            if world.violated or step - last_use > 300:
                return
    pytest.fail("never found")


TABLE = [
    (FIRST, None, Move(Do.LOOK_PENDING)),
    (Move(Do.LOOK_PENDING), [], Move(Do.LOOK_USING)),
    (Move(Do.LOOK_PENDING), [NEW, OLD], Move(Do.REMOVE, (NEW,), Do.REST)),
    (Move(Do.LOOK_PENDING), [OLD], Move(Do.DROP_PENDING, (OLD,))),
    (Move(Do.DROP_PENDING, (OLD,)), None, Move(Do.LOOK_PENDING)),
    (Move(Do.LOOK_USING), [], Move(Do.PROMOTE)),
    (Move(Do.LOOK_USING), [OLD, NEW], Move(Do.REMOVE, (NEW,), Do.BUSY)),
    (Move(Do.LOOK_USING), [OLD], Move(Do.DROP_USING, (OLD,))),
    (Move(Do.DROP_USING, (OLD,)), None, Move(Do.LOOK_USING)),
    (Move(Do.PROMOTE), True, Move(Do.USING)),
    (Move(Do.PROMOTE), False, Move(Do.REMOVE, then=Do.REST)),
    (Move(Do.REMOVE, then=Do.REST), None, Move(Do.REST)),
    (Move(Do.REMOVE, (NEW,), Do.BUSY), None, Move(Do.BUSY, (NEW,))),
    (Move(Do.REST), None, FIRST),
]


@pytest.mark.parametrize(("move", "answer", "coming"), TABLE)
def test_the_table(move: Move, answer: Answer, coming: Move) -> None:
    assert after(move, answer, AGES) == coming


def test_a_mount_looks_once_more() -> None:
    using = after(Move(Do.PROMOTE), True, AGES, confirm=True)
    assert using == Move(Do.CONFIRM)
    assert after(using, [OLD], AGES, confirm=True) == Move(Do.USING)
    assert after(using, [NEW], AGES, confirm=True).then is Do.REST


@pytest.mark.parametrize(
    ("move", "answer"),
    [
        (Move(Do.USING), None),
        (Move(Do.BUSY), None),
        (Move(Do.REMOVE), None),
        (Move(Do.PROMOTE), None),
        (Move(Do.LOOK_USING), True),
        (FIRST, []),
    ],
)
def test_an_answer_to_something_else(move: Move, answer: Answer) -> None:
    with pytest.raises(ValueError, match="no answer"):
        after(move, answer, AGES)


def test_a_dead_process_is_dead_at_once_and_no_age_is_no_death() -> None:
    dead, old = Record("a", 0.0, dead=True), Record("b", 1e9)
    never = Ages(using=None)
    assert after(Move(Do.LOOK_USING), [dead], never).do is Do.DROP_USING
    assert after(Move(Do.LOOK_USING), [old], never).then is Do.BUSY


@pytest.mark.parametrize(
    "ages",
    [{"pending": None}, {"pending": 0.5}, {"using": -1}, {"using": float("nan")}],
)
def test_ages_that_cannot_be_used(ages: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Ages(**ages)


def test_names() -> None:
    assert thing_of("book", 42) == thing_of("book", "42") == "book:42"
    assert thing_of("k", "é" * 99) == "k:" + "é" * 99
    for kind, number in (("", 1), ("a\n", 1), ("k", ""), ("k", "é" * 100), ("k", True)):
        with pytest.raises(ConfigurationError):
            thing_of(kind, number)
