"""Reads ``*.sql`` files: one statement a name, kept out of the code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statements(name: str) -> dict[str, str]:
    """The statements of ``<name>.sql``, keyed by what follows ``-- name:``."""
    text = files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    found = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        found[title.strip()] = body.strip()
    return found
