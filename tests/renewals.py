"""Renewals that a test waits for, however long the machine stands still meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from aiorwlock_remote import Held

PATIENCE = 30


async def renewed(held: Held, times: int = 2) -> None:
    """Wait until its deadline has moved so often; with ``renewed_often``, soon.

    Raises:
        LockLost: it was not.
    """
    again = renewals(held)
    with anyio.fail_after(PATIENCE):
        for _ in range(times):
            while not again():  # noqa: ASYNC110 - no event to be had
                await anyio.sleep(0.005)


def renewals(held: Held) -> Callable[[], bool]:
    """Tells whether there was one since the last time."""
    left = math.inf

    def again() -> bool:
        nonlocal left
        held.check()
        assert held.expires_in is not None, "never renewed"
        before, left = left, held.expires_in
        return left > before

    return again
