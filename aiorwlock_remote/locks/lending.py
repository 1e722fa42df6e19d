"""A grant that others share while it is held: for ``rwlock run``."""

from __future__ import annotations

from aiorwlock_remote.locks import passing
from aiorwlock_remote.locks.held import Held, grip_of


def lend(held: Held) -> str:
    """A ticket by which others may share the grant, while ``held`` keeps it."""
    return passing.write(grip_of(held).lease, shared=True)
