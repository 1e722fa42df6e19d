"""What a lock has to look like to be measured: something to enter, again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

Cycle = AbstractAsyncContextManager[object]
"""Entered it is held, left it is free. What entering gives may have a ``fence``."""


class Client(Protocol):
    """One process's way to the server."""

    async def lock(self, key: str, mode: str) -> Cycle:
        """What one task enters; ``mode``: mutex, reader, writer or any (of a set)."""


Open = Callable[[str, float], AbstractAsyncContextManager[Client]]
"""From the server's URL and a lease in seconds; set-up and tear-down are in here."""
