"""How an attempt that obtained nothing is called in metrics and traces."""

from __future__ import annotations

from aiorwlock_remote.errors import LockTimeout


def outcome_of(error: BaseException | None) -> str:
    """``busy``, ``timeout``, ``cancelled``, or the error's name."""
    if error is None:
        return "busy"
    if isinstance(error, LockTimeout):
        return "timeout"
    if not isinstance(error, Exception):  # asyncio's and trio's cancellations
        return "cancelled"
    return type(error).__name__
