"""The fence in an HTTP request: ``Lock-Fence``, written here and read there."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Protocol

from aiorwlock_remote.errors import BadFence, ConfigurationError
from aiorwlock_remote.fencing.checks import check_fence

HEADER = "Lock-Fence"

MAX_SECONDS_AHEAD = 86_400
"""Seconds by which a fence may be ahead of our clock: it is a time in microseconds, or
a little more. One from further away would keep everybody out who comes after it."""

_DIGITS = re.compile(r"[0-9]{1,16}")


class HasFence(Protocol):
    """A ``Held``."""

    @property
    def fence(self) -> int:
        """Its fence."""


def fence_header(held: HasFence) -> dict[str, str]:
    """The header that goes with a request made under a grant."""
    return {HEADER: str(held.fence)}


def read_fence(values: Sequence[str]) -> int:
    """The fence in all ``Lock-Fence`` headers of a request.

    It is what the caller says: believe it only of callers you trust with the resource,
    and let the resource itself compare it with the highest it has seen.

    Raises:
        BadFence: none, several, no number, or a day ahead of our clock.
        ConfigurationError: not the list of their values.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigurationError(
            what=f"a list of all {HEADER} headers, not {type(values).__name__}"
        )
    if len(values) != 1:
        count = "no" if not values else "more than one"
        raise BadFence(what=f"{count} {HEADER} header")
    text: object = values[0]
    if not isinstance(text, str) or _DIGITS.fullmatch(text) is None:
        raise BadFence(what=f"{HEADER} is no number")
    fence = check_fence(int(text))
    if fence > (time.time() + MAX_SECONDS_AHEAD) * 1e6:
        raise BadFence(what=f"{HEADER} is of the future")
    return fence
