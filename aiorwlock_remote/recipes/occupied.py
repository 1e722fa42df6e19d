"""An object in use, and how it is given back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Protocol, final

from aiorwlock_remote.errors import BackendError, Closed, LockLost, LossReason, NotOwner
from aiorwlock_remote.locks.single_entry import SingleEntry
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.recipes.occupy_attempt import carried_out, log, remove_own_record
from aiorwlock_remote.runtime.event_loop import TaskEventLoop


class OccupancyOwner(Protocol):
    """Where an object is in use."""

    @property
    def store(self) -> OccupancyStore:
        """Where the records are."""

    def deadline(self, sent_at: float) -> float | None:
        """Local time until which a record made, or made anew, then is no dead one."""


@final
class Occupied:
    """An object that is ours to use. Leaving ``async with`` gives it back.

    Alone until its record is ``using_age`` old: then others may take it for dead and
    occupy the object. ``check`` tells that by the local clock, before it can happen;
    ``extend`` puts it off; at the latest leaving tells, by ``LockLost``. One that
    is dropped before it was given back ends by that age: ``ResourceWarning``. Entering
    checks, too: one that was given back protects nothing. In a forked child it cannot
    be used, and leaving gives nothing back: it is its parent's.
    """

    def __init__(
        self,
        home: OccupancyOwner,
        host: TaskEventLoop,
        thing: str,
        who: str,
        sent_at: float,
    ) -> None:
        """Made by ``occupy``, not by users."""
        self._home = home
        self._host = host
        self._thing = thing
        self._who = who
        self._deadline = home.deadline(sent_at)
        self._released = self._tried = False
        self._inside = SingleEntry("Occupied")
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """The object's name in the store."""
        return self._thing

    @property
    def expires_in(self) -> float | None:
        """Seconds until others may take it for dead; None: never."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._host.clock.now())

    def check(self) -> None:
        """Make sure that nobody else can be using it; asks no store.

        Raises:
            LockLost: it is too old.
            NotOwner: given back.
            Closed: it is of the process that forked this one.
        """
        self._at_home()
        if self._released:
            raise NotOwner(resource=self._thing, action="check")
        if self.expires_in == 0.0:
            raise self._lost()

    async def extend(self) -> None:
        """Let its age begin anew. Cancelled, it may have.

        Raises:
            LockLost: it is too old, or its record is gone.
            NotOwner: given back.
            Closed: it is of the process that forked this one, or of another loop.
            BackendError: the store failed; it is as old as it was.
        """
        self.check()
        self._in_loop()
        sent_at = self._host.clock.now()
        store = self._home.store
        extend = partial(store.extend, self._thing, self._who)
        if not await carried_out(self._host, extend):
            raise self._lost()
        self._deadline = self._home.deadline(sent_at)

    async def release(self) -> bool:
        """Give it back; False if that was done before. Cancelling does not stop it.

        What it would have raised is written to the log, then.

        Raises:
            LockLost: its record was gone; others may have used the object.
            Closed: it is of the process that forked this one, or of another loop.
            BackendError: the store failed; it may be tried again, or ends by its age.
        """
        self._at_home()
        if self._released:
            return False
        self._in_loop()
        self._released = self._tried = True
        await carried_out(self._host, self._taken_out)
        return True

    async def __aenter__(self) -> Occupied:
        self.check()
        with self._inside:
            return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside.left()
        try:
            await self.release()
        except (LockLost, BackendError, Closed) as lost:
            if exc is None:
                raise
            # The body's own error goes first.
            log_event(log, "release_failed", resource=self._thing, error=str(lost))

    async def _taken_out(self) -> None:
        """Whether or not anybody waits for it any more."""
        try:
            removed = await remove_own_record(self._home.store, self._thing, self._who)
        except BackendError:
            self._released = False
            raise
        if not removed:
            raise self._lost()

    def _at_home(self) -> None:
        if os.getpid() != self._pid:
            raise Closed(reason="forked")

    def _in_loop(self) -> None:
        if not self._host.here():
            raise Closed(reason="other loop")

    def _lost(self) -> LockLost:
        reason: LossReason = "expired" if self.expires_in == 0.0 else "forced"
        return LockLost(reason=reason, resource=self._thing, mode="use")

    def __del__(self) -> None:
        if not getattr(self, "_tried", True) and os.getpid() == self._pid:
            warnings.warn(
                f"{self!r} was dropped", ResourceWarning, stacklevel=1, source=self
            )

    def __repr__(self) -> str:
        state = "given back" if self._released else "in use"
        return f"<Occupied {self._thing!r} {state}>"


@final
class OccupyAcquisition:
    """What ``occupy`` gives: ``await`` it for an ``Occupied``, or enter it."""

    def __init__(self, enter: Callable[[], Awaitable[Occupied]]) -> None:
        """Made by ``occupy``, not by users."""
        self._enter = enter
        self._inside = SingleEntry("occupy(…)", lambda: "occupy(…)")
        self._occupied: Occupied | None = None

    def __await__(self) -> Generator[Any, Any, Occupied]:
        self._inside.used()
        return self._enter().__await__()

    async def __aenter__(self) -> Occupied:
        with self._inside:
            self._occupied = await self._enter()
        return self._occupied

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._occupied is not None
        occupied, self._occupied = self._occupied, None
        self._inside.left()
        await occupied.__aexit__(exc_type, exc, traceback)
