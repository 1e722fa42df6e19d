"""Reads ``statements.cql``: one statement a name, kept out of the code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from aiorwlock_remote.backends.cassandra.options import Options


@cache
def _all() -> dict[str, str]:
    file = files("aiorwlock_remote.backends.cassandra") / "statements.cql"
    text = file.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        found[title.strip()] = "\n".join(lines).strip()
    return found


def statement(name: str, options: Options) -> str:
    """The statement of that name, for the table the options name."""
    return text_of(name, options.quoted)


def text_of(name: str, table: str) -> str:
    """The statement of that name, for a table as it stands in CQL."""
    return _all()[name].replace("{table}", table)
