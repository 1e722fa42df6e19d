"""The log events of the package, found in its code."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "aiorwlock_remote"
CALLS = {"log_event": 1, "guarded": 1, "log_redis": 0, "log_debug": 0}
"""The functions that log, and which of their arguments is the event."""


def loggers_of_events() -> dict[str, set[str]]:
    """Return each event that is written out in a call, with the loggers it goes to."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = _parsed(path)
        for logger, event in _events(tree, [tree], _loggers(tree)):
            found[event].add(logger)
    return found


def words_of_modules() -> dict[str, set[str]]:
    """Return the texts that stand in the modules of each logger."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = _parsed(path)
        words = {node.value for node in ast.walk(tree) if _is_text(node)}  # type: ignore[attr-defined]
        for logger in _loggers(tree).values():
            found[logger] |= words
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _loggers(tree: ast.Module) -> dict[str, str]:
    # Maps the name of a variable to the name of its logger, which may be that of the
    # module from which it is imported.
    found = _own_loggers(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            there = _loggers_of_module(node.module)
            names = (one.name for one in node.names)
            found |= {name: there[name] for name in names if name in there}
    return found


def _own_loggers(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=name),
                value=ast.Call(
                    func=ast.Attribute(attr="getLogger"),
                    args=[ast.Constant(value=str(logger))],
                ),
            ):
                found[name] = found[f"self.{name}"] = logger
            case ast.AnnAssign(
                target=ast.Name(id=name),
                value=ast.Call(
                    func=ast.Name(id="partial"), args=[_, ast.Name(id="log")]
                ),
            ):
                found[name] = found["log"]
            case _:
                pass
    return found


@cache
def _loggers_of_module(module: str) -> dict[str, str]:
    package, _, rest = module.partition(".")
    path = PACKAGE.joinpath(*rest.split(".")).with_suffix(".py")
    if package != PACKAGE.name or not rest or not path.exists():
        return {}
    return _own_loggers(_parsed(path))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _events(
    node: ast.AST, scopes: Sequence[ast.AST], loggers: dict[str, str]
) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        scopes = [*scopes, node]
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func).rpartition(".")[2]
        place = CALLS.get(function, len(node.args))
        if place < len(node.args):
            name = ast.unparse(node.args[0]) if place else function
            for event in _texts(node.args[place], scopes):
                if name in loggers:
                    yield loggers[name], event
    for child in ast.iter_child_nodes(node):
        yield from _events(child, scopes, loggers)


def _texts(node: ast.AST, scopes: Sequence[ast.AST]) -> set[str]:
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=orelse):
            return _texts(body, scopes) | _texts(orelse, scopes)
        case ast.Name(id=name):
            values = (value for scope in scopes for value in _values(scope, name))
            return {text for value in values for text in _texts(value, [])}
        case _:
            return set()


def _values(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    # Yields what is assigned to the variable anywhere in the scope.
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value):
                if found == name:
                    yield value
            case ast.Assign(
                targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)
            ):
                for target, value in zip(names, values, strict=False):
                    if isinstance(target, ast.Name) and target.id == name:
                        yield value
            case _:
                pass
