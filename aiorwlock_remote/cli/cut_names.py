"""Resources whose names are too long to be shown: what people see of them is cut."""

from __future__ import annotations

from contextlib import aclosing

import click

from aiorwlock_remote import LockInfo, Locks
from aiorwlock_remote.core.names import is_cut


async def look(locks: Locks, target: tuple[str, str]) -> LockInfo:
    """As it stands; one that is named as it was shown is looked for in the list."""
    if any(map(is_cut, target)):
        async with aclosing(locks.list()) as listed:
            async for seen in listed:
                if (seen.resource_type, seen.resource_id) == target:
                    return seen
    return await locks.rwlock(*target).info()


def whole(target: tuple[str, str]) -> tuple[str, str]:
    """``target``, to be locked.

    Raises:
        click.UsageError: what is shown of a name is the name of another resource.
    """
    if any(map(is_cut, target)):
        raise click.UsageError("TYPE/ID is cut where it is shown; the whole is needed.")
    return target
