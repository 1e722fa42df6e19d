"""Each loop over an asynchronous generator closes it, also if it is left early.

Otherwise the garbage collector ends the generator: later, in another task, and in a
trio program with a ``ResourceWarning``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "aiorwlock_remote"


def loops_left_open(text: str) -> Iterator[str]:
    """Yield the loops over generators that no ``async with aclosing(…)`` closes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call):
            yield f"{node.lineno}: async for … in {ast.unparse(node.iter)}"


def test_no_loop_of_the_package_leaves_one_open() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert list(loops_left_open(path.read_text())) == [], path


@pytest.mark.parametrize(
    ("loop", "count"),
    [
        ("async for x in found():\n  yield x", 1),
        ("async for x in a.found(1):\n  break", 1),
        (
            "async with aclosing(found()) as every:\n async for x in every:\n  yield x",
            0,
        ),
        ("return [x async for x in found()]", 0),  # ends with what it iterates over
    ],
)
def test_such_loops_are_found(loop: str, count: int) -> None:
    body = "\n".join(" " + line for line in loop.split("\n"))
    assert len(list(loops_left_open(f"async def f():\n{body}"))) == count
