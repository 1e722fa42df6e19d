"""One attempt to occupy an object, carried out beyond its caller's cancellation.

A statement that is cut off may have been carried out, or be carried out yet, after what
was sent to undo it. So a step that has begun is never cancelled: an attempt is a task
of its own, and whoever is cancelled tells it so and waits, not for ever, until it has
taken its records out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.occupancy import (
    FIRST_ACTION,
    Action,
    Answer,
    NextAction,
    after,
)
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    Closed,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.runtime.cleanup import answered
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

T = TypeVar("T")

CLEANUP_TIMEOUT = 5.0
"""Seconds that a cancelled caller waits for its records to be gone."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.occupancy")

_LAST = (Action.REST, Action.BUSY, Action.USING)


async def settled(pending: Pending[Any]) -> None:
    """It has come, or failed, or took too long; even for who is cancelled."""
    with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True), suppress(Exception):
        await pending


async def carried_out(host: TaskEventLoop, function: Callable[[], Awaitable[T]]) -> T:
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
            await settled(pending)
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
                await carried_out(host, self.take_out)
        else:
            await settled(done)

    async def _run(self, host: TaskEventLoop) -> None:
        move, promoted = FIRST_ACTION, False
        try:
            while move.do not in _LAST and not self._abandoned:
                promoted = promoted or move.do is Action.PROMOTE
                step = partial(self._carry_out, move)
                answer = await answered(step, host.clock, CLEANUP_TIMEOUT, self._wanted)
                move = after(
                    move, answer, self._store.ages, confirm=self._store.confirms
                )
            self._wanted()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            clean = _never_written(move, exc) or await self._cleaned()
            self._done.set_exception(exc if clean or not promoted else self._doubt(exc))
        except BaseException:  # the loop ends
            await self._cleaned()
            self._done.set_exception(Closed())
            raise
        else:
            self._done.set_result(move)

    async def _carry_out(self, move: NextAction) -> Answer:
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


def _never_written(move: NextAction, exc: Exception) -> bool:
    return move == FIRST_ACTION and not is_uncertain(exc)
