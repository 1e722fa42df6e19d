"""A step that is stopped at any of its calls harms nobody else.

A sample of the table of scripts, calls and situations. To run all of it, and to count
the cases: ``python -m tests.backends.redis.test_stopped_steps``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from random import Random
from typing import NamedTuple

from tests.backends.redis import half_done, half_done_recipes
from tests.backends.redis.half_done import LEASE, Refusal, Then

SITUATIONS, REFUSALS = 8, 12
"""The test runs one of so many situations, and of these one of so many refusals."""

FLAGS = (False, True)


class Row(NamedTuple):
    """One case: whether its step is refused, and who is harmed, says ``check``."""

    script: str
    situation: str
    refusal: Refusal
    check: Callable[[], object]


def table(chosen: Callable[[int], bool] = bool) -> Iterator[Row]:
    """Yield all rows, or a sample: ``chosen(n)`` is True for one of ``n``."""
    for lease in (LEASE, None):
        for case in half_done.cases(lease):
            if not chosen(SITUATIONS):
                continue
            for refusal, *then in product(case.refusals(), FLAGS, FLAGS):
                check = partial(half_done.check, case, refusal, Then(*then))
                if chosen(REFUSALS):
                    yield Row(case.kind.__name__, case.name, refusal, check)
    for scenes, checked in (
        (half_done_recipes.set_scenes, half_done_recipes.check_set),
        (half_done_recipes.object_scenes, half_done_recipes.check_object),
    ):
        for interrupted in scenes():
            for refusal, crashed in product(interrupted.refusals(), FLAGS):
                if chosen(REFUSALS):
                    script = interrupted.name.partition(":")[0]
                    todo = partial(checked, interrupted, refusal, crashed=crashed)
                    yield Row(script, interrupted.name, refusal, todo)


def test_a_sample_harms_nobody() -> None:
    refused: Counter[str] = Counter()
    random = Random(46)
    for row in table(lambda count: random.randrange(count) == 0):
        try:
            refused[row.script] += bool(row.check())
        except AssertionError as exc:
            raise AssertionError(f"{row[:3]}: {exc}") from exc
    scripts = ("Keys", "PairKeys", "PermitKeys", "set", "object")
    assert all(refused[script] > 3 for script in scripts), refused


def main() -> None:
    found: Counter[str] = Counter()
    harmed: Counter[str] = Counter()
    situations: dict[str, set[str]] = {}
    for row in table():
        found[row.script] += 1
        situations.setdefault(row.script, set()).add(row.situation)
        try:
            row.check()
        except AssertionError as exc:
            harmed[row.script] += 1
            print(f"{row[:3]}: {exc}")  # noqa: T201 - the report of a long run
    for script, count in found.items():
        kinds = len(situations[script])
        print(f"{script}: {kinds} situations, {count} cases, {harmed[script]} harm")  # noqa: T201


if __name__ == "__main__":
    main()
