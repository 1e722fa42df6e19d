"""A step that is stopped at any of its calls harms nobody: each script, call and situation.

A sample of the table; ``python -m tests.backends.redis.test_half_done_table`` runs the whole,
and prints how many cases of each script there are.
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

EVERY = 80
"""Of so many cases a test runs one."""


class Row(NamedTuple):
    """One case: whether its step is refused, and who is harmed, says ``check``."""

    script: str
    situation: str
    refusal: Refusal
    check: Callable[[], object]


def table() -> Iterator[Row]:
    """All of it; ``Then`` and ``crashed`` are what happens next."""
    for lease in (LEASE, None):
        for case in half_done.cases(lease):
            for refusal, crashed, met in product(
                case.refusals(), (False, True), (False, True)
            ):
                check = partial(half_done.check, case, refusal, Then(crashed, met))
                yield Row(case.kind.__name__, case.name, refusal, check)
    for scenes, checked in (
        (half_done_recipes.set_scenes, half_done_recipes.check_set),
        (half_done_recipes.object_scenes, half_done_recipes.check_object),
    ):
        for scene in scenes():
            for refusal, crashed in product(scene.refusals(), (False, True)):
                check = partial(checked, scene, refusal, crashed=crashed)
                yield Row(scene.name.partition(":")[0], scene.name, refusal, check)


def test_a_sample_harms_nobody() -> None:
    refused: Counter[str] = Counter()
    rows = list(table())
    for row in Random(46).sample(rows, len(rows) // EVERY):
        try:
            refused[row.script] += bool(row.check())
        except AssertionError as exc:
            raise AssertionError(f"{row[:3]}: {exc}") from exc
    assert all(refused[script] > 3 for script in ("Keys", "PairKeys", "PermitKeys"))


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
