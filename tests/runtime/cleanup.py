"""Requests that end grants, and do not arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from aiorwlock_remote import Locks
from aiorwlock_remote.core.commands import Command, Release, Withdraw
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink

NAME = ("far", 1)
LEASE = 60.0
"""Longer than anybody waits here."""

Ask = Callable[[], Awaitable[object]]


def ends_fail(command: Command) -> Fate:
    """What would end a grant does not arrive."""
    return Fate.REFUSE if isinstance(command, Withdraw | Release) else Fate.PASS


async def held_back(link: FaultyLink) -> bool:
    return link.held_back > 0


async def cancelled(link: FaultyLink, ask: Ask) -> None:
    """While the answer is on its way."""
    link.hold_back = True
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            await ask()

        group.start_soon(wait)
        await wait_until(lambda: held_back(link), 10)
        group.cancel_scope.cancel()
    link.let_through()


async def is_free_once_the_store_hears(link: FaultyLink, near: Locks) -> None:
    """And not before."""
    assert await near.mutex(*NAME).locked()
    link.fate = lambda _: Fate.PASS
    async with near.mutex(*NAME).acquire(timeout=20):
        pass


def near_sees_it_wait(near: Locks) -> Callable[[], Awaitable[bool]]:
    async def waits() -> bool:
        return bool((await near.mutex(*NAME).info()).queue)

    return waits


async def asked_again(link: FaultyLink, sent: int, times: int = 1) -> bool:
    ends = (isinstance(command, Withdraw | Release) for command in link.sent[sent:])
    return sum(ends) >= times
