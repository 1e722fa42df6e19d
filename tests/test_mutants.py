"""The mutants of ``nox -s mutants``: what is changed, and that each is a program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.changed_copy import ROOT
from tests.mutants import (
    AREAS,
    JUDGED,
    PACKAGE,
    judged,
    mutants,
    outcome,
    reaching,
)

PYTHON = '''\
LIMIT = 3


def take(row: Row, now: int = 0) -> bool:
    """Take it: 1 < 2."""
    log_event(log, "taken", now + 1)
    if not row.free and row.end <= now:
        row.end = now + 5
        return True
    return min(row) is not None
'''
SQL = 'STEP = "UPDATE locks SET n = n + 1 WHERE n < 5 AND kept >= 0"\n'
LUA = """\
-- Not 1 < 2.
local at = now + 30 -- until then
if not seen and at >= 5 then
  call('DEL', key)
end
"""


def changes(path: str, text: str) -> list[tuple[int, str, str]]:
    return [(one.line, one.old, one.new) for one in mutants(path, text)]


def test_of_python() -> None:
    assert changes("a.py", PYTHON) == [
        (7, "not", ""),
        (7, "and", "or"),
        (7, "<=", "<"),
        (8, "row.end = now + 5", "pass"),
        (8, "+", "-"),
        (8, "5", "6"),
        (9, "True", "False"),
        (10, "min", "max"),
        (10, "is not", "is"),
    ]


def test_of_sql() -> None:
    assert changes("a.py", SQL) == [
        (1, "+", "-"),
        (1, "<", "<="),
        (1, "AND", "OR"),
        (1, ">=", ">"),
    ]


def test_of_lua() -> None:
    assert changes("a.lua", LUA) == [
        (2, "+", "-"),
        (2, "30", "31"),
        (3, "not", ""),
        (3, "and", "or"),
        (3, ">=", ">"),
        (3, "5", "6"),
        (4, "call('DEL', key)", ""),
    ]


@pytest.mark.parametrize("area", AREAS)
def test_each_is_a_program_and_another_one(area: str) -> None:
    path = max(
        (path for each in AREAS[area].code for path in (ROOT / PACKAGE).glob(each)),
        key=lambda path: path.stat().st_size,
    )
    text = path.read_text("utf-8")
    made = mutants(str(path.relative_to(ROOT)), text)
    assert len(made) > 10
    for one in made[:: len(made) // 10]:
        changed = text[: one.begin] + one.new + text[one.end :]
        if path.suffix == ".py":
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        assert changed != text
    assert all((ROOT / test).exists() for test in AREAS[area].tests)


def test_what_is_judged_is_still_there() -> None:
    """A reason for a line that has changed is a reason for nothing."""
    for path in {path for path, _, _ in judged()}:
        there = {one.key for one in mutants(path, (ROOT / path).read_text("utf-8"))}
        assert {key for key in judged() if key[0] == path} <= there, JUDGED


def test_a_line_that_no_test_reaches_is_noticed_by_none(tmp_path: Path) -> None:
    """All tests of the area might take too long, which would count as a failure."""
    area = AREAS["core"]
    (tmp_path / "a.py").write_text(text := "def f():\n    return 1\n")
    (one,) = mutants("a.py", text)
    assert reaching(one, {2: ["tests/a.py::test_f"]}, area) == ["tests/a.py::test_f"]
    assert reaching(one, {}, area) == []
    assert outcome(one, tmp_path, []) == "survived"
    (lua,) = mutants("a.lua", "return 1\n")
    assert reaching(lua, {}, area) == ["tests/core"]
