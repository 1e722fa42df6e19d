"""Reads ``*.sql`` files: one statement a name, kept out of the code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statements(name: str) -> dict[str, str]:
    """The statements of ``<name>.sql``, keyed by what follows ``-- name:``."""
    file = files("aiorwlock_remote.backends.sql") / f"{name}.sql"
    text = file.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        found[title.strip()] = body.strip()
    return found
