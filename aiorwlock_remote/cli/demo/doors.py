"""How a worker gets in: a lock, or a lock that is switched off."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from anyio.lowlevel import checkpoint

from aiorwlock_remote import RWLock, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from aiorwlock_remote.cli.demo.orders import Plan
    from aiorwlock_remote.testing.events import Mode


class Grant(Protocol):
    """What a session needs of a ``Held``."""

    @property
    def fence(self) -> int:
        """Presented with every access."""

    @property
    def holder(self) -> str:
        """Its public name in the store."""

    @property
    def expires_in(self) -> float | None:
        """Seconds it may be believed."""

    def check(self) -> None:
        """LockLost if it is not held any more."""


class Door(Protocol):
    """How to get in: a lock, or the lack of one."""

    def enter(self, mode: Mode) -> AbstractAsyncContextManager[Grant]:
        """Wait; hold for as long as the block runs."""


@final
@dataclass(frozen=True, slots=True)
class Locked:
    """A readers-writer lock."""

    lock: RWLock
    name: str

    def enter(self, mode: Mode) -> AbstractAsyncContextManager[Grant]:
        """Wait as long as it takes; LockLost if the grant ends before the block."""
        side = self.lock.writer if mode == "W" else self.lock.reader
        return side.acquire(reason=self.name)


@final
@dataclass(frozen=True, slots=True)
class Unlocked:
    """A lock that is switched off: everybody may enter, all with one fence."""

    expires_in: float | None
    fence: int = 1
    holder: str = ""

    def check(self) -> None:
        """Nothing is ever lost."""

    @asynccontextmanager
    async def enter(self, mode: Mode) -> AsyncIterator[Unlocked]:
        """Do not wait."""
        del mode
        await checkpoint()
        yield self


@asynccontextmanager
async def open_door(plan: Plan) -> AsyncIterator[Door]:
    """Connect, if there is to be a lock."""
    if plan.url is None:
        yield Unlocked(plan.lease)
        return
    async with connect(plan.url) as locks:
        yield Locked(locks.rwlock(*plan.resource, lease=plan.lease), plan.name)
