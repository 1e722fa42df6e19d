"""The tests that comments of the package name: are they there, and do they bite?

``python -m tests.citations [PART …]`` takes each statement behind such a comment out,
in a copy of the project, and runs the tests that the comment names: one has to fail.
Without a statement that binds a name everything fails: such a statement is changed
instead, as ``tests.mutants`` does, until a change is noticed. If there is nothing in it
to change, the outcome is "unbound", and a reader has to judge it.
``PART``: of the paths of modules, such as ``runtime/cleanup``; all otherwise. It prints
a line for each statement, and ends with 1 if one was missed by its tests.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.changed_copy import ROOT, changed, copied, tests_pass
from tests.mutants import mutants

PACKAGE = ROOT / "aiorwlock_remote"
CASES = PACKAGE / "testing" / "conformance"
SECONDS = 300.0
"""For the tests of one statement."""
_NAME = re.compile(r"\btest_\w+(?:\.py)?")
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_WHOLE = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.With | ast.AsyncWith
)


@dataclass(frozen=True, slots=True)
class Citation:
    """Tests that a comment names.

    ``first``, ``last``: the lines of the statement that they guard, 0 if there is none
    that could be taken out. ``binds``: the statement gives a name its first value.
    """

    path: Path
    line: int
    names: tuple[str, ...]
    first: int = 0
    last: int = 0
    binds: bool = False

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.first or self.line}"


def citations(path: Path) -> Iterator[Citation]:
    """Yield those in the comments of a module, in order; docstrings guard nothing."""
    text = path.read_text("utf-8")
    statements = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)
    ]
    for first, last, comment in _comments(text):
        names = tuple(dict.fromkeys(_NAME.findall(comment)))
        if not names:
            continue
        behind = [node for node in statements if node.lineno > last]
        node = min(behind, key=lambda one: one.lineno, default=None)
        if node is None or isinstance(node, _WHOLE) or node.lineno > last + 1:
            yield Citation(path, first, names)
        else:
            binds = _binds(node, statements)
            yield Citation(path, first, names, node.lineno, node.end_lineno or 0, binds)


def _binds(node: ast.stmt, statements: list[ast.stmt]) -> bool:
    """Whether a name or attribute has no value before this statement."""
    around = [
        one for one in statements if isinstance(one, _FUNCTION) and _in(node, one)
    ]
    function = max(around, key=lambda one: one.lineno, default=None)
    known = set[str]()
    for one in ast.walk(function) if function is not None else ():
        if isinstance(one, ast.arg):
            known.add(one.arg)
        elif isinstance(one, ast.Name) and one.lineno < node.lineno:
            known.add(one.id)
    makes = function is not None and function.name == "__init__"
    return any(
        makes if isinstance(one, ast.Attribute) else one.id not in known
        for one in _targets(node)
        if isinstance(one, ast.Attribute | ast.Name)
    )


def _in(node: ast.stmt, other: ast.stmt) -> bool:
    return other.lineno < node.lineno <= (other.end_lineno or 0)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    if not isinstance(node, ast.Assign):
        return []
    return [
        one
        for target in node.targets
        for one in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]


def cited(path: Path) -> set[str]:
    """Return the tests that a module names, in docstrings, too."""
    return set(_NAME.findall(_joined(path.read_text("utf-8"))))


def misplaced(path: Path) -> list[str]:
    """Return the tests that a module names in a file that does not have them."""
    text = re.sub(r"\s[ #]*", " ", _joined(path.read_text("utf-8")))
    return [
        f"{file}: {name}"
        for file, name in re.findall(
            r"\b(test_\w+\.py)`*: `*(test_\w+)\b(?!\.py)", text
        )
        if not any(
            re.search(rf"def {name}", found.read_text("utf-8"))
            for found in ROOT.glob(f"tests/**/{file}")
        )
    ]


def is_there(name: str) -> bool:
    """Whether a name is that of a test or a file of tests, or begins that of a test."""
    if name.endswith(".py"):
        return any(ROOT.glob(f"tests/**/{name}"))
    return any(known.startswith(name) for known in _known())


def files_with(name: str) -> list[str]:
    """Return the files of tests that have it, or are it."""
    if name.endswith(".py"):
        found = [*ROOT.glob(f"tests/**/{name}")]
    else:
        pattern = re.compile(rf"def {name}\b")
        found = [
            path
            for path in (*ROOT.glob("tests/**/test_*.py"), *CASES.rglob("*.py"))
            if pattern.search(path.read_text("utf-8"))
        ] or _with_suite_of(pattern)
        if any(path.is_relative_to(CASES) for path in found):
            return [
                "tests/conformance/test_memory.py",
                "tests/conformance/test_client.py",
            ]
    return [str(path.relative_to(ROOT)) for path in found]


def _with_suite_of(pattern: re.Pattern[str]) -> list[Path]:
    """Return the files of tests that import the class of tests which has this one."""
    suites = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.glob("tests/**/*_suite.py")
        if pattern.search(path.read_text("utf-8"))
    }
    files = sorted(ROOT.glob("tests/**/test_*.py")) if suites else []
    texts = {path: path.read_text("utf-8") for path in files}
    return [path for path in files if any(f"from {s} " in texts[path] for s in suites)]


def _comments(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the blocks of comments that stand alone: first line, last line, text."""
    begin, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        alone = (
            token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
        )
        if alone and (not lines or token.start[0] == begin + len(lines)):
            begin = begin if lines else token.start[0]
            lines.append(token.string)
        elif lines and token.type not in {
            tokenize.NL,
            tokenize.INDENT,
            tokenize.DEDENT,
        }:
            yield begin, begin + len(lines) - 1, _joined("\n".join(lines))
            begin, lines = 0, []
            if alone:
                begin, lines = token.start[0], [token.string]


def _joined(text: str) -> str:
    """A name that does not fit into a line goes on in the next with an underscore."""
    return re.sub(r"(?<=\w)\n[ #]*(?=_\w)", "", text)


@cache
def _known() -> frozenset[str]:
    paths = (*ROOT.glob("tests/**/*.py"), *CASES.rglob("*.py"))
    names = {path.stem for path in paths if path.name.startswith("test_")}
    for path in paths:
        names.update(re.findall(r"def (test_\w+)", path.read_text("utf-8")))
    return frozenset(names)


def main(parts: list[str]) -> int:
    """Take one statement after the other out, and print what came of it."""
    counts: Counter[str] = Counter()
    with TemporaryDirectory(prefix="citations-") as folder:
        copy = copied(Path(folder, "project"))
        for path in sorted(PACKAGE.rglob("*.py")):
            if parts and not any(part in path.as_posix() for part in parts):
                continue
            for each in citations(path):
                came = _without(each, copy) if each.first else "no statement"
                counts[came] += 1
                print(f"{came:13} {each}: {', '.join(each.names)}", flush=True)
    print(dict(counts))
    return 1 if counts["missed"] else 0


def _without(citation: Citation, copy: Path) -> str:
    """Return what its tests say without the statement: killed, missed or unbound."""
    files = [file for name in citation.names for file in files_with(name)]
    tests = [name for name in citation.names if not name.endswith(".py")]
    if not files:
        return "no test"
    chosen = ["-k", " or ".join(tests)] if tests else []
    words = [*dict.fromkeys(files), *chosen]
    module = copy / citation.path.relative_to(ROOT)
    text = module.read_text("utf-8")
    bound = list(_otherwise(citation, text)) if citation.binds else []
    for wrong in bound or [_taken_out(citation, text)]:
        with changed(module, wrong):
            if not tests_pass(copy, *words, seconds=SECONDS):
                return "unbound" if citation.binds and not bound else "killed"
    return "missed"


def _taken_out(citation: Citation, text: str) -> str:
    lines = text.splitlines()
    indent = re.match(r" *", lines[citation.first - 1])
    assert indent is not None
    lines[citation.first - 1 : citation.last] = [f"{indent[0]}pass"]
    return "\n".join(lines) + "\n"


def _otherwise(citation: Citation, text: str) -> Iterator[str]:
    """Yield the module with one thing changed within the statement."""
    for one in mutants(str(citation.path.relative_to(ROOT)), text):
        if citation.first <= one.line <= citation.last and one.new != "pass":
            yield text[: one.begin] + one.new + text[one.end :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
