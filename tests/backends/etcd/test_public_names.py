"""The backend is the proof of the public base: it imports nothing private."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

import aiorwlock_remote.backends.etcd as package

PUBLIC = {
    *("aiorwlock_remote.cas", "aiorwlock_remote.errors", "aiorwlock_remote.ports"),
}
FILES = sorted(Path(str(package.__file__)).parent.glob("*.py"))
GRPC = {"grpc_channel.py", "grpc_connection.py", "messages.py"}
"""What a package of others would do: HTTP/2 with gRPC, and etcd's messages."""
MOST_LINES = 1000
"""Of code of the store: without docstrings, comments and blank lines."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_public_modules_only(path: Path) -> None:
    imported = {
        node.module or ""
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {name for name in imported if name.startswith("aiorwlock_remote")}
    assert {name for name in ours if not name.startswith(package.__name__)} <= PUBLIC


def test_the_store_is_small() -> None:
    store = [path for path in FILES if path.name not in GRPC]
    assert len(FILES) - len(store) == len(GRPC)
    assert sum(len(code_lines(path.read_text("utf-8"))) for path in store) <= MOST_LINES


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines with code in them."""
    shown = {
        tokenize.COMMENT,
        *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        number
        for token in tokens
        if token.type not in shown
        for number in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines
