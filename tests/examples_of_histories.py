"""How many examples of Hypothesis a story is told by: more in a session of its own."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("STORIES", "1"))


def many(examples: int) -> int:
    """So many, as often as `nox -s stories` asks for."""
    return examples * TIMES
