"""Mutation testing: does a test fail if a line of the code is slightly wrong?

``python -m tests.mutants AREA [--every N] [--first N]`` changes one thing after the
other in a copy of the project, one in ``N`` (default 1), and runs the tests that come
through the changed line, the shortest first; for Lua, which no coverage sees, all tests
of the area. One that no test comes through has survived. It prints a line for each
mutant, and a summary. Those that change nothing but speed are listed, each with its
reason, in ``tests/mutants.tsv``.

As a plug-in of pytest (``-p tests.mutants``) it notes which test runs which lines.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import pytest
from coverage import Coverage, CoverageData

from tests.changed_copy import ROOT, changed, copied, tests_pass

PACKAGE = "aiorwlock_remote"
JUDGED = ROOT / "tests/mutants.tsv"
WORKERS = 2
SECONDS = 240.0
"""For the tests of one mutant."""
AT_A_TIME = 120
"""Of the tests that come through a line, the shortest first."""
STATEMENT_LINES = 12
"""A line within a statement may have no event of its own: one above it has."""


@dataclass(frozen=True, slots=True)
class Area:
    """Modules or scripts, and the tests that are about them."""

    code: tuple[str, ...]
    tests: tuple[str, ...]


AREAS: dict[str, Area] = {
    "core": Area(("core/*.py",), ("tests/core",)),
    "runtime": Area(
        ("runtime/*.py",), ("tests/runtime", "tests/conformance/test_memory.py")
    ),
    "locks": Area(
        ("locks/*.py",),
        ("tests/locks", "tests/runtime", "tests/conformance/test_memory.py"),
    ),
    "cas": Area(
        ("cas/*.py", "cas/driver/*.py"),
        ("tests/cas", "tests/embedded", "tests/conformance/test_sqlite.py"),
    ),
    "redis": Area(
        ("backends/redis/lua/*.lua",),
        (
            "tests/backends/redis/test_differential.py",
            "tests/backends/redis/test_differential_permits.py",
            "tests/conformance/test_redis.py",
        ),
    ),
    "sets": Area(
        ("backends/redis/lua/mutex_set*.lua", "recipes/mutex_set.py"),
        (
            "tests/recipes/test_mutex_set.py",
            "tests/recipes/test_set_limits.py",
            "tests/recipes/test_set_faults.py",
            "tests/recipes/test_set_random_histories.py",
            "tests/recipes/test_set_foreign_programs.py",
        ),
    ),
    "fencing": Area(("fencing/*.py", "fencing/*.lua"), ("tests/fencing",)),
    "recipes": Area(("recipes/*.py", "recipes/row_lock/*.py"), ("tests/recipes",)),
    "sqlite": Area(("backends/sqlite/*.py",), ("tests/conformance/test_sqlite.py",)),
    "etcd": Area(
        ("backends/etcd/*.py",),
        ("tests/backends/etcd", "tests/conformance/test_etcd.py"),
    ),
    "postgresql": Area(
        ("backends/postgresql/*.py",),
        ("tests/backends/postgresql", "tests/conformance/test_postgresql.py"),
    ),
}
SWAPS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "~=": "==",
    "<>": "=",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
    "and": "or",
    "or": "and",
    "+": "-",
    "-": "+",
    "AND": "OR",
    "OR": "AND",
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGED = re.compile(r"(log_event|log|_note|warn|warnings)\b")
_SQL = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|SET|VALUES)\b")
_SQL_WORDS = re.compile(
    r"(?<![<>!=|])(<=|>=|<>|<|>|\bAND\b|\bOR\b|(?<= )\+(?= ))(?![=>])"
)
_OPERATOR = re.compile(r"is\s+not\b|not\s+in\b|is\b|in\b|and\b|or\b|[<>=!]=|[<>]|[+-]")
_LUA_WORDS = re.compile(
    r"(?P<skip>--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|(?P<swap>==|~=|<=|>=|<|>|\band\b|\bor\b|(?<= )[+-](?= ))"
    r"|(?P<not>\bnot )|(?P<number>(?<![\w.%])\d+(?![\w.]))"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the characters ``begin`` to ``end`` of a file become ``new``."""

    path: str
    line: int
    begin: int
    end: int
    old: str
    new: str
    source: str
    """The line."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What ``mutants.tsv`` knows it by: its line may move."""
        return self.path, self.source, f"{self.old} -> {self.new}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.source} [{self.old} -> {self.new}]"


# ------------------------------------------------------------------- operators


def mutants(path: str, text: str) -> list[Mutant]:
    """Return those of a file, in order."""
    lines = text.splitlines()
    found = _of_lua(text) if path.endswith(".lua") else _of_python(text)
    made: list[Mutant] = []
    for begin, end, new in sorted(set(found)):
        line = text.count("\n", 0, begin) + 1
        old = text[begin:end]
        shown = old if len(old) < 40 else old[:37] + "..."
        made.append(
            Mutant(
                path,
                line,
                begin,
                end,
                " ".join(shown.split()),
                new,
                lines[line - 1].strip(),
            )
        )
    return made


def _of_lua(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _LUA_WORDS.finditer(text):
        begin, end, word = match.start(), match.end(), match[0]
        if match["swap"]:
            yield begin, end, SWAPS[word]
        elif match["not"]:
            yield begin, end, ""
        elif match["number"]:
            yield begin, end, str(int(word) + 1)
    at = 0
    for line in text.splitlines(keepends=True):
        statement = re.fullmatch(
            r"(\s*)((?:call|redis\.call)\(.*\)|\w+\([^()]*\))\s*", line
        )
        if statement:
            yield at + len(statement[1]), at + len(statement[1] + statement[2]), ""
        at += len(line)


class _Offsets:
    """Where a node lies in its text, in characters."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        chars = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(chars)

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.at(node.lineno, node.col_offset),
            self.at(node.end_lineno, node.end_col_offset),
        )


def _of_python(text: str) -> Iterator[tuple[int, int, str]]:
    offsets = _Offsets(text)
    for node in _judged(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.IfExp):
            yield from _of_choice(text, offsets, node)
        else:
            yield from _of_operator(text, offsets, node)


def _of_operator(
    text: str, offsets: _Offsets, node: ast.AST
) -> Iterator[tuple[int, int, str]]:
    operands: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
    elif isinstance(node, ast.BoolOp):
        operands = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        operands = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        begin, _ = offsets.of(node)
        yield begin, begin + len("not "), ""
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in OPPOSITES:
            yield *offsets.of(node.func), OPPOSITES[node.func.id]
    elif isinstance(node, ast.Constant):
        yield from _of_constant(text, offsets, node)
    for left, right in pairwise(operands):
        yield from _between(text, offsets, left, right)


def _of_choice(
    text: str, offsets: _Offsets, node: ast.stmt | ast.IfExp
) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.Await):
            begin, end = offsets.of(node.test)
            yield begin, end, f"not ({text[begin:end]})"
    elif _can_go(node):
        yield *offsets.of(node), "pass"


def _judged(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs: no annotations, types, defaults of a module, assertions, logs."""
    queue: list[tuple[ast.AST, bool]] = [(tree, True)]
    while queue:
        node, at_top = queue.pop()
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Expr) and (
            isinstance(node.value, ast.Constant) or _LOGGED.match(ast.unparse(node))
        ):
            continue
        if isinstance(node, ast.If) and "log.isEnabledFor" in ast.unparse(node.test):
            continue
        settles = at_top and isinstance(node, ast.Assign | ast.AnnAssign | ast.If)
        if settles and not _SQL.search(ast.unparse(node)):
            continue
        yield node
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, value in ast.iter_fields(node):
            if name in {
                "annotation",
                "returns",
                "decorator_list",
                "args",
                "bases",
            } and (not isinstance(node, ast.Call)):
                continue
            if name == "keywords" and isinstance(node, ast.ClassDef):
                continue
            children = value if isinstance(value, list) else [value]
            top = at_top and not inside
            queue += [(child, top) for child in children if isinstance(child, ast.AST)]


def _between(
    text: str, offsets: _Offsets, left: ast.expr, right: ast.expr
) -> Iterator[tuple[int, int, str]]:
    """Yield the change of the operator between two operands."""
    begin, end = offsets.of(left)[1], offsets.of(right)[0]
    gap = re.sub(r"#[^\n]*", lambda match: " " * len(match[0]), text[begin:end])
    match = re.search(
        r"is\s+not\b|not\s+in\b|is\b|in\b|and\b|or\b|[<>=!]=|[<>]|[+-]", gap
    )
    if match is not None:
        word = " ".join(match[0].split())
        yield begin + match.start(), begin + match.end(), SWAPS[word]


def _of_constant(
    text: str, offsets: _Offsets, node: ast.Constant
) -> Iterator[tuple[int, int, str]]:
    begin, end = offsets.of(node)
    if isinstance(node.value, bool):
        yield begin, end, str(not node.value)
    elif isinstance(node.value, int):
        yield begin, end, str(node.value + 1)
    elif isinstance(node.value, str) and _SQL.search(node.value):
        for match in _SQL_WORDS.finditer(text, begin, end):
            yield match.start(), match.end(), SWAPS[match[0]]


def _can_go(node: ast.stmt) -> bool:
    """Whether the statement could be forgotten, and the module still be one."""
    if isinstance(node, ast.Expr):
        value = node.value
        value = value.value if isinstance(value, ast.Await) else value
        return isinstance(value, ast.Call)
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue)


# ------------------------------------------------- which test runs which lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Say whose lines these are, and how long the test took."""
    running = Coverage.current()
    if running is None:
        return (yield)
    name = item.nodeid.partition("[")[0]
    running.switch_context(name)
    began = time.monotonic()
    try:
        return (yield)
    finally:
        running.switch_context("")
        with Path(os.environ["MUTANTS_TIMES"]).open("a", encoding="utf-8") as file:
            file.write(f"{name}\t{time.monotonic() - began}\n")


def reached(area: Area, folder: Path) -> dict[str, dict[int, list[str]]]:
    """Return the tests of an area by file and line, the shortest first."""
    data, times = folder / "coverage", folder / "times"
    sources = sorted({str(Path(PACKAGE, each).parent) for each in area.code})
    run = [sys.executable, "-m", "coverage", "run", f"--data-file={data}", "--rcfile="]
    what = [f"--include={','.join(f'{one}/*' for one in sources)}"]
    tests = ["-m", "pytest", "-q", "-p", "tests.mutants", *area.tests]
    environment = {**os.environ, "MUTANTS_TIMES": str(times)}
    ran = subprocess.run([*run, *what, *tests], cwd=ROOT, env=environment, check=False)
    if ran.returncode:
        sys.exit("the tests of the area fail as they are")
    took: Counter[str] = Counter()
    for line in times.read_text("utf-8").splitlines():
        name, _, seconds = line.partition("\t")
        took[name] += round(1e6 * float(seconds))
    collected = CoverageData(str(data))
    collected.read()
    found: dict[str, dict[int, list[str]]] = {}
    for file in collected.measured_files():
        by_line = collected.contexts_by_lineno(file)
        found[str(Path(file).relative_to(ROOT))] = {
            line: sorted(filter(None, names), key=took.__getitem__)
            for line, names in by_line.items()
        }
    return found


# ----------------------------------------------------------------------- running


def judged() -> set[tuple[str, str, str]]:
    """Return those that change nothing, as ``mutants.tsv`` lists them."""
    lines = JUDGED.read_text("utf-8").splitlines() if JUDGED.exists() else []
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {(path, source, change) for path, source, change, _ in rows}


def reaching(mutant: Mutant, where: Mapping[int, list[str]], area: Area) -> list[str]:
    """Return the tests that come through its line; of Lua, all of the area.

    None, if none comes there: all tests of an area may take longer than ``SECONDS``,
    and the mutant would count as killed.
    """
    if mutant.path.endswith(".lua"):
        return [*area.tests]
    lines = range(mutant.line, mutant.line - STATEMENT_LINES, -1)
    return next((where[line] for line in lines if where.get(line)), [])


def outcome(mutant: Mutant, copy: Path, tests: list[str]) -> str:
    """Return ``killed`` or ``survived``."""
    file = copy / mutant.path
    text = file.read_text("utf-8")
    wrong = text[: mutant.begin] + mutant.new + text[mutant.end :]
    with changed(file, wrong):
        for first in range(0, len(tests), AT_A_TIME):
            some = tests[first : first + AT_A_TIME]
            if not tests_pass(copy, *some, seconds=SECONDS):
                return "killed"
    return "survived"


def main(arguments: list[str]) -> int:
    """Try the mutants of an area; 1 if one survived that is not judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args(arguments)
    area = AREAS[given.area]
    paths = sorted(p for each in area.code for p in (ROOT / PACKAGE).glob(each))
    all_of_them = [
        mutant
        for path in paths
        for mutant in mutants(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    ]
    known = judged()
    chosen = all_of_them[given.first :: given.every]
    tried = [mutant for mutant in chosen if mutant.key not in known]
    with TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        where = reached(area, folder)
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copies.put(copied(folder / str(number)))

        def run(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                tests = reaching(mutant, where.get(mutant.path, {}), area)
                came = outcome(mutant, copy, tests)
            finally:
                copies.put(copy)
            print(f"{came:9}{mutant}", flush=True)
            return came

        with ThreadPoolExecutor(WORKERS) as pool:
            counts = Counter(pool.map(run, tried))
    print(
        f"{given.area}: {len(all_of_them)} mutants, {len(tried)} tried, "
        f"{counts['killed']} killed, {counts['survived']} survived, "
        f"{len(chosen) - len(tried)} judged to change nothing"
    )
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
