"""``OccupyAttempt``: one attempt to occupy an object, in a task of its own.

A statement whose caller is cancelled may have been carried out, or may be carried out
after the statement that was sent to undo it. So a request to the store is never
cancelled: each attempt runs in a task of its own, and a cancelled caller waits a
bounded time until that task has removed the attempt's records.
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
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.runtime.cleanup import ask_with_retries
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

T = TypeVar("T")

CLEANUP_TIMEOUT = 5.0
"""Seconds that a cancelled caller waits until its records are removed."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.occupancy")

_FINAL_ACTIONS = (Action.REST, Action.BUSY, Action.USING)


class OccupyAttempt:
    """One attempt to occupy an object. It leaves a record in the store if it succeeds.

    Args:
        store: Contains the records.
        loop: The event loop in which the attempt runs.
        thing: The object's name in the store.
        label: The name that other contenders are shown.
        on_left_behind: Called with the attempt, in the event loop, if the removal of
            its records failed.
    """

    def __init__(
        self,
        store: OccupancyStore,
        loop: TaskEventLoop,
        thing: str,
        label: str,
        on_left_behind: Callable[[OccupyAttempt], object],
    ) -> None:
        self._store = store
        self.loop = loop
        self._thing = thing
        self._label = label
        self.who: str = store.sign(label)
        self._on_left_behind = on_left_behind
        self._abandoned = False
        self._done: Pending[NextAction] = spawn_pending(loop, self._run)

    async def outcome(self) -> NextAction:
        """Return the attempt's last action: USING, BUSY or REST.

        USING: the object is obtained. BUSY: another program uses it. REST: other
        programs tried at the same moment. If the caller is cancelled, no record of the
        attempt remains.

        Raises:
            BackendError: the store failed; records are removed if it can be reached.
            AcquireUncertain: a using record may remain in the store.
            Closed: ``call_off`` was called.
        """
        try:
            return await self._done
        except Exception:
            raise
        except BaseException:
            await self.call_off()
            raise

    async def call_off(self) -> None:
        """Abort the attempt, or give the object back if it was obtained; wait for that.

        No error is raised if the removal of the records fails.
        """
        # The task of the attempt sees the flag after its current request, whose effect
        # is known by then (test_cancelled_at_each_step).
        self._abandoned = True
        done = self._done
        if done.done() and done.error is None and done.result().do is Action.USING:
            await run_beyond_cancellation(self.loop, self.try_to_remove)
        else:
            await wait_settled(done)

    async def try_to_remove(self) -> bool:
        """Remove all records of this attempt; return False if the store failed."""
        try:
            await remove_own_record(self._store, self._thing, self.who)
        except BackendError:
            return False
        return True

    async def _run(self) -> NextAction:
        move, promoted = FIRST_ACTION, False
        try:
            while move.do not in _FINAL_ACTIONS and not self._abandoned:
                # From here on an error leaves it open whether the object is ours.
                promoted = promoted or move.do is Action.PROMOTE
                step = partial(self._carry_out, move)
                answer = await ask_with_retries(
                    step, self.loop.clock, CLEANUP_TIMEOUT, self._raise_if_abandoned
                )
                move = next_action(
                    move, answer, self._store.ages, confirm=self._store.confirms
                )
            self._raise_if_abandoned()
        except Exception as exc:
            # A removal that is not needed could block for as long as the server is away
            # (test_what_is_certainly_not_written_is_not_removed).
            unwritten = move == FIRST_ACTION and not is_uncertain(exc)
            if unwritten or await self._cleaned() or not promoted:
                raise
            raise AcquireUncertain(
                resource=self._thing, holder=self._label, lease=self._store.ages.using
            ) from exc
        except BaseException:
            # The loop ends: what is left in the store now stays until its age
            # (test_a_loop_that_ends_leaves_nothing).
            await self._cleaned()
            raise
        return move

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
                    event = "died" if record.dead else "aged_out"
                    log_event(log, event, resource=thing, who=record.shown, using=using)
                    await store.drop(thing, record, using=using)
            case Action.PROMOTE:
                return await store.promote(thing, who)
            case _:
                await remove_own_record(store, thing, who)
        return None

    def _raise_if_abandoned(self) -> None:
        if self._abandoned:
            raise Closed

    async def _cleaned(self) -> bool:
        with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True):
            try:
                await remove_own_record(self._store, self._thing, self.who)
            except Exception as exc:  # noqa: BLE001 - the caller waits for our end
                log_event(log, "left_behind", error=str(exc))
            else:
                debug, resource = logging.DEBUG, self._thing
                log_event(log, "withdrawn", debug, resource=resource, label=self._label)
                return True
        self._on_left_behind(self)
        return False


async def wait_settled(pending: Pending[Any]) -> None:
    """Wait ``CLEANUP_TIMEOUT`` s at most for an outcome, even in a cancelled task."""
    with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True), suppress(Exception):
        await pending


def spawn_pending(
    loop: TaskEventLoop, function: Callable[[], Awaitable[T]]
) -> Pending[T]:
    """Run ``function`` in a task of its own; return a ``Pending`` of its result."""
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

    loop.spawn(run)
    return pending


async def run_beyond_cancellation(
    loop: TaskEventLoop, function: Callable[[], Awaitable[T]]
) -> T:
    """Run ``function`` in a task of its own, which is not cancelled with the caller.

    Return its result or raise its error. A cancelled caller waits ``CLEANUP_TIMEOUT``
    seconds at most for the end of ``function``, whose error is only logged then.
    """
    pending = spawn_pending(loop, function)
    try:
        return await pending
    except Exception:
        raise
    except BaseException:
        # Cancelled. A caller that went on at once could meet its own record.
        try:
            await wait_settled(pending)
        finally:
            pending.log_failure()
        raise


async def remove_own_record(store: OccupancyStore, thing: str, who: str) -> bool:
    """Remove the records of one attempt; return True if it had obtained the object.

    If the connection is lost, the removal is sent once more (after a restart of the
    server a pool is full of dead connections), and the result is True: a record that
    is missing then counts as removed by the first request.

    ``thing``: the object's name in the store; ``who``: the id from ``store.sign``.
    """
    try:
        return await store.remove(thing, who)
    except BackendUnavailable:
        await store.remove(thing, who)
        return True
