"""Pending → using: every interleaving of two and three contenders, and random ones."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.core.occupancy import (
    FIRST_ACTION,
    Action,
    ActionResult,
    ContenderRecord,
    ExpiryAges,
    NextAction,
    contender_id,
    label_of,
    next_action,
    object_key,
)
from tests.core.occupancy_interleavings import (
    AGES,
    Contender,
    Explored,
    Game,
    Rule,
    State,
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

NEW, OLD = ContenderRecord("a", 1.0), ContenderRecord("b", 11.0)


def rows(found: Explored) -> set[tuple[str, ...]]:
    return {tuple(sorted(state.row)) for state in found.worlds}


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
def test_a_crashed_or_slow_contender_blocks_nobody_for_ever(crashes: int) -> None:
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
    """Two to five contenders; some crash, some are slow, and the object is used."""
    chance = Random(8)
    counted: Counter[str] = Counter()
    for number in range(SCHEDULES):
        game = Game(crashes=2, agings=2)
        state = State(tuple(Contender() for _ in range(2 + number % 4)))
        for _ in range(40):
            what, state = game.any_step(state, chance)
            assert not state.violated, (number, what, state)
            counted[what.partition(" ")[2]] += 1
    seldom = min(counted[what] for what in ("using", "crashes", "rest", "busy"))
    assert seldom > SCHEDULES / 100, counted


@pytest.mark.parametrize("rule", [wrong_order, early_return])
def test_control_random_schedules_find_what_is_wrong(rule: Rule) -> None:
    chance = Random(8)
    game = Game(rule=rule)
    for _ in range(SCHEDULES):
        state = State((Contender(), Contender()))
        last_use = 0
        for step in range(400):
            what, state = game.any_step(state, chance)
            last_use = step if what.endswith("using") else last_use
            if state.violated or step - last_use > 300:
                return
    pytest.fail("never found")


TABLE = [
    (FIRST_ACTION, None, NextAction(Action.LOOK_PENDING)),
    (NextAction(Action.LOOK_PENDING), [], NextAction(Action.LOOK_USING)),
    (
        NextAction(Action.LOOK_PENDING),
        [NEW, OLD],
        NextAction(Action.REMOVE, (NEW,), Action.REST),
    ),
    (NextAction(Action.LOOK_PENDING), [OLD], NextAction(Action.DROP_PENDING, (OLD,))),
    (NextAction(Action.DROP_PENDING, (OLD,)), None, NextAction(Action.LOOK_PENDING)),
    (NextAction(Action.LOOK_USING), [], NextAction(Action.PROMOTE)),
    (
        NextAction(Action.LOOK_USING),
        [OLD, NEW],
        NextAction(Action.REMOVE, (NEW,), Action.BUSY),
    ),
    (NextAction(Action.LOOK_USING), [OLD], NextAction(Action.DROP_USING, (OLD,))),
    (NextAction(Action.DROP_USING, (OLD,)), None, NextAction(Action.LOOK_USING)),
    (NextAction(Action.PROMOTE), True, NextAction(Action.USING)),
    (NextAction(Action.PROMOTE), False, NextAction(Action.REMOVE, then=Action.REST)),
    (NextAction(Action.REMOVE, then=Action.REST), None, NextAction(Action.REST)),
    (
        NextAction(Action.REMOVE, (NEW,), Action.BUSY),
        None,
        NextAction(Action.BUSY, (NEW,)),
    ),
    (NextAction(Action.REST), None, FIRST_ACTION),
]


@pytest.mark.parametrize(("move", "answer", "coming"), TABLE)
def test_the_table(move: NextAction, answer: ActionResult, coming: NextAction) -> None:
    assert next_action(move, answer, AGES) == coming


def test_a_mount_looks_once_more() -> None:
    using = next_action(NextAction(Action.PROMOTE), True, AGES, confirm=True)
    assert using == NextAction(Action.CONFIRM)
    assert next_action(using, [OLD], AGES, confirm=True) == NextAction(Action.USING)
    assert next_action(using, [NEW], AGES, confirm=True).then is Action.REST


@pytest.mark.parametrize(
    ("move", "answer"),
    [
        (NextAction(Action.USING), None),
        (NextAction(Action.BUSY), None),
        (NextAction(Action.REMOVE), None),
        (NextAction(Action.PROMOTE), None),
        (NextAction(Action.LOOK_USING), True),
        (FIRST_ACTION, []),
    ],
)
def test_an_answer_to_something_else(move: NextAction, answer: ActionResult) -> None:
    with pytest.raises(ValueError, match="not a result of"):
        next_action(move, answer, AGES)


def test_a_dead_process_is_dead_at_once_and_no_age_is_no_death() -> None:
    dead, old = ContenderRecord("a", 0.0, dead=True), ContenderRecord("b", 1e9)
    never = ExpiryAges(using=None)
    assert (
        next_action(NextAction(Action.LOOK_USING), [dead], never).do
        is Action.DROP_USING
    )
    assert next_action(NextAction(Action.LOOK_USING), [old], never).then is Action.BUSY


@pytest.mark.parametrize(
    "ages",
    [{"pending": None}, {"pending": 0.5}, {"using": -1}, {"using": float("nan")}],
)
def test_ages_that_cannot_be_used(ages: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        ExpiryAges(**ages)


def test_names() -> None:
    assert object_key("book", 42) == object_key("book", "42") == "book:42"
    assert object_key("k", "é" * 99) == "k:" + "é" * 99
    for kind, number in (("", 1), ("a\n", 1), ("k", ""), ("k", "é" * 100), ("k", True)):
        with pytest.raises(ConfigurationError):
            object_key(kind, number)


@pytest.mark.parametrize("foreign", ["a,beef", "a," + "x" * 32, "a" * 32, ""])
def test_only_our_ids_have_a_label(foreign: str) -> None:
    assert label_of(contender_id("host,1", bytes(16))) == "host,1"
    assert label_of(foreign) == foreign
