"""What the package uses of other libraries' private parts, and what it does without."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_tables import table

PACKAGE = Path(__file__).parents[1] / "aiorwlock_remote"

DOCUMENTED = {"_meta", "_default_manager", "_replace", "_exit", "_thread"}
"""Of Django and the standard library: their documentation names them."""

OWN = {
    "_ask",
    "_chain",
    "_check_margin_and_compute",
    "_conditions",
    "_handed_out",
    "_known",
    "_lease",
    "_left",
    "_lock",
    "_mapped",
    "_new",
    "_now",
    "_old",
    "_opener",
    "_open",
    "_options",
    "_release_tried",
    "_request",
    "_session",
    "_state",
    "_twin",
    "_wrapped",
}
"""Names of this package that one object uses of another one, of the same module."""


def listed() -> set[tuple[str, str]]:
    """Return the modules and private names of the table in docs/architecture.md."""
    return {
        (module, name)
        for _library, parts, modules, _without in table("architecture.md", "library")
        for module in re.findall(r"`([\w/.]+\.py)`", modules)
        for name in re.findall(r"`(_\w+)`", parts)
    }


class Classes:
    """The names that each class of the package defines, with those of its bases."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self._own: defaultdict[str, set[str]] = defaultdict(set)
        self._bases: defaultdict[str, set[str]] = defaultdict(set)
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(
                    node.test
                ):
                    node.body = [ast.Pass()]  # stubs of what is not ours
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._bases[node.name] |= {
                        ast.unparse(base).partition("[")[0] for base in node.bases
                    }
                    self._own[node.name] |= set(defined(node))

    def names(self, name: str) -> set[str]:
        inherited = (self.names(base) for base in self._bases.get(name, ()))
        return set(self._own.get(name, ())).union(*inherited)


def defined(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Constant(value=str(name)):  # of __slots__
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(
                value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()
            ):
                yield name
            case _:
                pass


def hidden(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None and name not in DOCUMENTED


def used(
    node: ast.AST, classes: Classes, module: str, own: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ClassDef):
        own = frozenset(classes.names(node.name))
    match node:
        case ast.Attribute(
            value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")),
            attr=name,
        ):
            if hidden(name) and name not in own:
                yield module, name
        case ast.Attribute(attr=name):
            if hidden(name) and name not in OWN:
                yield module, name
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr"),
            args=[target, ast.Constant(value=str(name)), *_],
        ):
            known = own if ast.unparse(target) == "self" else OWN
            if hidden(name) and name not in known:
                yield module, name
        case ast.Import(names=names):
            parts = [part for one in names for part in one.name.split(".")]
            yield from ((module, part) for part in parts if hidden(part))
        case ast.ImportFrom(module=str(source), names=names, level=0):
            if not source.startswith("aiorwlock_remote"):
                parts = [*source.split("."), *(one.name for one in names)]
                yield from ((module, part) for part in parts if hidden(part))
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from used(child, classes, module, own)


def found_in(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    classes = Classes(trees)
    return {use for name, tree in trees.items() for use in used(tree, classes, name)}


def trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_each_use_is_in_the_table() -> None:
    assert found_in(trees()) - listed() == set()


def test_each_part_of_the_table_is_used() -> None:
    parts: defaultdict[str, str] = defaultdict(str)
    for module, name in listed():
        parts[name] += (PACKAGE / module).read_text("utf-8")
    assert {name for name, text in parts.items() if name not in text} == set()


@pytest.mark.parametrize(
    "text",
    [
        "connection._secret",
        "def f(connection): return connection._secret.x",
        "getattr(connection, '_secret', None)",
        "hasattr(given, '_secret')",
        "from redis._secret import x",
        "from redis import _secret",
        "import redis._secret",
        "class C(Theirs):\n    def f(self): return self._secret",
        "class C(Theirs):\n    def f(self): return super()._secret()",
        "class D: _secret = 1\nclass C(Theirs):\n    def f(self): return self._secret",
    ],
)
def test_a_new_use_is_found(text: str) -> None:
    assert found_in({"x.py": ast.parse(text)}) == {("x.py", "_secret")}


@pytest.mark.parametrize(
    "text",
    [
        "class C(Theirs):\n    def _y(self): self._x = 1\n    def f(self): self._y()",
        "class D: _x = 1\nclass C(D):\n    def f(self): return self._x",
        "class C:\n    __slots__ = ('_x',)\n    def f(self): return self._x",
        "from aiorwlock_remote._util.pending import Pending",
        "model._meta.pk",
    ],
)
def test_own_and_documented_names_are_not_private(text: str) -> None:
    assert found_in({"x.py": ast.parse(text)}) == set()
