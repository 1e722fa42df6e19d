"""Tickets are secrets: no repr of anything in the core shows one."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import transition

SECRET = "s3cr3t-ticket"  # noqa: S105 - looked for where it must not be

COMMANDS: list[Command] = [
    Acquire((Claim(SECRET, 1000),), Mode.WRITE),
    Release(SECRET),
    Withdraw("client", Mode.WRITE, (SECRET,), upgrader=SECRET),
    Renew(((SECRET, 1000),)),
    Downgrade(SECRET, Claim(SECRET + "2", 1000)),
    Upgrade(SECRET, Claim(SECRET + "2", 1000)),
    Adopt(SECRET, Claim(SECRET + "2", 1000)),
    ForceRelease("aaaaaaaaaaaa", 1, seat=SECRET + ",1"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_nothing_shows_a_ticket(command: Command) -> None:
    """Commands, doormen, mutex records and replies show no ticket."""
    assert SECRET not in repr(command)
    mode = Mode.READ if isinstance(command, Upgrade) else Mode.WRITE
    held = transition(None, None, Acquire((Claim(SECRET, 9999),), mode), 1, 1)
    step = transition(held.record, held.seat, command, 2, 2)
    assert SECRET not in repr(held)
    assert SECRET not in repr(step)
