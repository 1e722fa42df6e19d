"""An object in use, and how it is given back.

One attempt to occupy an object, carried out beyond its caller's cancellation.

A statement that is cut off may have been carried out, or be carried out yet, after what
was sent to undo it. So a step that has begun is never cancelled: an attempt is a task
of its own, and whoever is cancelled tells it so and waits, not for ever, until it has
taken its records out.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar, final

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.occupancy import (
    FIRST_ACTION,
    Action,
    ActionResult,
    NextAction,
    next_action,
)
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    Closed,
    LockLost,
    LossReason,
    NotOwner,
)
from aiorwlock_remote.locks.acquisition import SingleEntry
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.runtime.cleanup import ask_with_retries
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

T = TypeVar("T")

CLEANUP_TIMEOUT = 5.0
"""Seconds that a cancelled caller waits for its records to be gone."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.occupancy")

_FINAL_ACTIONS = (Action.REST, Action.BUSY, Action.USING)


async def wait_settled(pending: Pending[Any]) -> None:
    """It has come, or failed, or took too long; even for who is cancelled."""
    with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True), suppress(Exception):
        await pending


async def run_beyond_cancellation(
    host: TaskEventLoop, function: Callable[[], Awaitable[T]]
) -> T:
    """What it returns or raises. Cancelling the caller does not reach it.

    What it raises is written to the log then.
    """
    pending: Pending[T] = Pending()

    async def run() -> None:
        try:
            value = await function()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            pending.set_exception(exc)
        except BaseException:  # the loop ends
            pending.set_exception(Closed())
            raise
        else:
            pending.set_result(value)

    host.spawn(run)
    try:
        return await pending
    except Exception:
        raise
    except BaseException:
        try:
            await wait_settled(pending)
        finally:
            pending.log_failure()
        raise


async def remove_own_record(store: OccupancyStore, thing: str, who: str) -> bool:
    """Remove what is ours; whether it was using, as far as anybody can know.

    Once more if the connection was lost: a server that was restarted leaves pools full
    of dead ones. What is gone by then was there the first time.
    """
    try:
        return await store.remove(thing, who)
    except BackendUnavailable:
        await store.remove(thing, who)
        return True


class OccupyAttempt:
    """From no record to a using one, or back to none."""

    def __init__(
        self,
        store: OccupancyStore,
        thing: str,
        label: str,
        left: Callable[[OccupyAttempt], object],
    ) -> None:
        """``who`` it is: nobody was, or will be.

        ``left`` is called if records of it may stay: to ``take_out`` later.
        """
        self._store = store
        self._thing = thing
        self._label = label
        self.who: str = store.sign(label)
        self._left = left
        self._abandoned = False
        self._done: Pending[NextAction] = Pending()

    async def outcome(self, host: TaskEventLoop) -> NextAction:
        """How it ended: REST, BUSY or USING. Cancelled, it leaves no record.

        Raises:
            BackendError: the store failed; no record is left, if it could be reached.
            AcquireUncertain: it may be using, and cannot be taken back.
            Closed: called off.
        """
        host.spawn(partial(self._run, host))
        try:
            return await self._done
        except Exception:
            raise
        except BaseException:
            await self.call_off(host)
            raise

    async def call_off(self, host: TaskEventLoop) -> None:
        """Take the records out, whatever has become of it, and wait for that."""
        self._abandoned = True
        done = self._done
        if done.done() and done.error is None and done.result().do is Action.USING:
            with suppress(BackendError):
                await run_beyond_cancellation(host, self.take_out)
        else:
            await wait_settled(done)

    async def _run(self, host: TaskEventLoop) -> None:
        move, promoted = FIRST_ACTION, False
        try:
            while move.do not in _FINAL_ACTIONS and not self._abandoned:
                promoted = promoted or move.do is Action.PROMOTE
                step = partial(self._carry_out, move)
                answer = await ask_with_retries(
                    step, host.clock, CLEANUP_TIMEOUT, self._wanted
                )
                move = next_action(
                    move, answer, self._store.ages, confirm=self._store.confirms
                )
            self._wanted()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            clean = _nothing_written(move, exc) or await self._cleaned()
            self._done.set_exception(exc if clean or not promoted else self._doubt(exc))
        except BaseException:  # the loop ends
            await self._cleaned()
            self._done.set_exception(Closed())
            raise
        else:
            self._done.set_result(move)

    async def _carry_out(self, move: NextAction) -> ActionResult:
        store, thing, who = self._store, self._thing, self.who
        match move.do:
            case Action.WRITE:
                await store.write(thing, who)
            case Action.LOOK_PENDING:
                return await store.pendings(thing, who)
            case Action.LOOK_USING | Action.CONFIRM:
                return await store.usings(thing, who)
            case Action.DROP_PENDING | Action.DROP_USING:
                using = move.do is Action.DROP_USING
                for record in move.records:
                    log_event(
                        log,
                        "aged_out" if not record.dead else "died",
                        resource=thing,
                        who=record.shown,
                        using=using,
                    )
                    await store.drop(thing, record, using=using)
            case Action.PROMOTE:
                return await store.promote(thing, who)
            case _:
                await self.take_out()
        return None

    def _wanted(self) -> None:
        """Raise ``Closed`` if it was called off."""
        if self._abandoned:
            raise Closed

    async def take_out(self) -> None:
        """Remove its records.

        Raises:
            BackendError: the store failed.
        """
        await remove_own_record(self._store, self._thing, self.who)

    async def _cleaned(self) -> bool:
        """Whether no record is left."""
        with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True):
            try:
                await self.take_out()
            except Exception as exc:  # noqa: BLE001 - the caller waits for our end
                self._left(self)
                log_event(log, "left_behind", error=str(exc))
                return False
            return True
        self._left(self)
        return False

    def _doubt(self, exc: Exception) -> Exception:
        uncertain = AcquireUncertain(
            resource=self._thing,
            holder=self._label,
            lease=self._store.ages.using,
        )
        uncertain.__cause__ = exc
        return uncertain


def _nothing_written(move: NextAction, exc: Exception) -> bool:
    return move == FIRST_ACTION and not is_uncertain(exc)


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
        if not await run_beyond_cancellation(self._host, extend):
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
        await run_beyond_cancellation(self._host, self._taken_out)
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
