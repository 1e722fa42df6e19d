"""Files of statements: each by its name, kept out of the code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def load_statements(package: str, file: str) -> dict[str, str]:
    """The statements of a file, keyed by what follows ``-- name:``; no comments."""
    text = (files(package) / file).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        found[title.strip()] = "\n".join(lines).strip()
    return found
