"""Turns the docstrings of the async API into those of the synchronous one."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")

#: Words of async programs, which must not be left.
ODD = re.compile(r"\bawait|\basync with|\bcancel|coroutine|aclose|other loop")

Pairs = list[tuple[str, str]]


class Words:
    """The words of ``words.txt``, and those among them that were not needed."""

    def __init__(self) -> None:
        self._pairs = _read(FILE.read_text("utf-8"))
        self.unused: set[str] = {
            f"[{name}] {old}" for name, pairs in self._pairs.items() for old, _ in pairs
        }

    def of_threads(self, name: str, text: str) -> str:
        """Return the docstring of an async name for its synchronous twin.

        Raises:
            ValueError: words of async programs are left, which ``words.txt`` lacks.
        """
        for heading in (name, "*"):
            for old, new in self._pairs.get(heading, []):
                # With a paragraph that goes, the empty line before it goes.
                before = r"" if new else r"\s*"
                pattern = before + r"\s+".join(map(re.escape, old.split()))
                text, count = re.subn(pattern, new.replace("\\", r"\\"), text)
                if count:
                    self.unused.discard(f"[{heading}] {old}")
        odd = ODD.search(text)
        if odd is not None:
            raise ValueError(f"{name}: {odd[0]!r} is left; say in words.txt what else")
        return text


def _read(text: str) -> dict[str, Pairs]:
    found: dict[str, Pairs] = {}
    pairs: Pairs = []
    for entry in re.split(r"\n(?=[\[+-])", text)[1:]:
        sign, words = entry[0], " ".join(entry[1:].split())
        if sign == "[":
            pairs = found.setdefault(words.rstrip("]"), [])
        elif sign == "-":
            pairs.append((words, ""))
        else:
            old, new = pairs[-1]
            pairs[-1] = old, f"{new}\n\n{words}" if new else words
    return found
