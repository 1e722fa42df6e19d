"""What a fence is, and what is no fence."""

from __future__ import annotations

from aiorwlock_remote.errors import BadFence

HIGHEST = 2**53 - 1
"""What Lua and JavaScript keep exactly; fences get there in the year 2255."""


def check_fence(fence: int) -> int:
    """The fence, if it is one.

    Raises:
        BadFence: no integer, negative, or out of range.
    """
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise BadFence(what=f"a fence is an int, not {type(fence).__name__}")
    if not 0 <= fence <= HIGHEST:
        raise BadFence(what=f"fence {fence} is out of range")
    return fence
