"""What is measured: one lock, however it is spelled, as something to enter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

Cycle = AbstractAsyncContextManager[object]
"""Entered it is held, left it is free; entered again and again, by many tasks."""

Open = Callable[[Path], AbstractAsyncContextManager[Callable[[], Cycle]]]
"""From an empty folder to what gives a ``Cycle``; all set-up and tear-down is here."""

ASYNCIO = frozenset({"asyncio", "uvloop"})
TRIO = frozenset({"trio"})
EVERY_LOOP = ASYNCIO | TRIO


@dataclass(frozen=True)
class Peer:
    """A lock to be measured.

    ``family``: peers of one family are compared with each other, namely with its
    ``floor``. ``shared``: several may be inside, as readers are. ``processes``: whether
    other processes take part. ``waits``: whether a task may ask for it while another
    task of its process is inside.
    """

    name: str
    family: str
    open: Open
    loops: frozenset[str] = EVERY_LOOP
    floor: bool = False
    shared: bool = False
    processes: bool = False
    waits: bool = True
