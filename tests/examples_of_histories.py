"""The number of Hypothesis examples of the random histories."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("HISTORIES", "1"))


def many(examples: int) -> int:
    """Return the number of examples, times the factor of `nox -s histories`."""
    return examples * TIMES
