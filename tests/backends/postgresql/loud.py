"""A server that writes down what it is asked, and what a test needs to read it."""

from __future__ import annotations

import re
from pathlib import Path

from aiorwlock_remote import Locks
from tests.servers.postgresql import Postgresql

LOUD = {"log_statement": "all", "log_line_prefix": "%a|"}


def log_of(server: Postgresql) -> str:
    return Path(server.folder / server.log_name).read_text()


def statements(server: Postgresql) -> list[str]:
    """What this library has asked for so far, by the server's log."""
    asked = r"^aiorwlock_remote\|LOG:  (?:execute [^:]*|statement): "
    entries = re.split(asked, log_of(server), flags=re.MULTILINE)[1:]
    return [entry.split("\n")[0] for entry in entries]


async def queued(locks: Locks, number: int = 1, kind: str = "order") -> bool:
    return len((await locks.mutex(kind, 1).info()).queue) == number


async def take(locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass
