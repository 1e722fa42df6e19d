"""Servers whose wall clock is off, while everybody else's is right."""

from __future__ import annotations

from pathlib import Path

from tests.servers.preloading import preloading

SOURCE = Path(__file__).with_name("clock.c")


def off_by(seconds: int, folder: Path) -> list[str]:
    """What goes before a command, so that its clock is ahead by so much (or behind).

    ``folder``: for what has to be compiled.
    """
    if not seconds:
        return []
    return preloading(SOURCE, folder, CLOCK_OFFSET=str(seconds))
