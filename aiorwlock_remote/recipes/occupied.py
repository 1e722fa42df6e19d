"""One attempt to occupy an object, and the object while it is occupied.

A statement whose caller is cancelled may have been carried out, or may be carried out
after the statement that was sent to undo it. So a request to the store is never
cancelled: each attempt runs in a task of its own, and a cancelled caller waits a
bounded time until that task has removed the attempt's records.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, final

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
from aiorwlock_remote.runtime.lease import local_deadline

T = TypeVar("T")

CLEANUP_TIMEOUT = 5.0
"""Seconds that a cancelled caller waits until its records are removed."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.occupancy")

_FINAL_ACTIONS = (Action.REST, Action.BUSY, Action.USING)


async def wait_settled(pending: Pending[Any]) -> None:
    """Wait ``CLEANUP_TIMEOUT`` s at most for an outcome, even in a cancelled task."""
    with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True), suppress(Exception):
        await pending


async def run_beyond_cancellation(
    loop: TaskEventLoop, function: Callable[[], Awaitable[T]]
) -> T:
    """Run ``function`` in a task of its own, which is not cancelled with the caller.

    Return its result or raise its error. A cancelled caller waits ``CLEANUP_TIMEOUT``
    seconds at most for the end of ``function``, whose error is only logged then.
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

    loop.spawn(run)
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


class OccupyAttempt:
    """One attempt to occupy an object. It leaves a record in the store if it succeeds.

    Args:
        store: Contains the records.
        thing: The object's name in the store.
        label: The name that other contenders are shown.
        on_left_behind: Called with the attempt, in the event loop, if the removal of
            its records failed.
    """

    def __init__(
        self,
        store: OccupancyStore,
        thing: str,
        label: str,
        on_left_behind: Callable[[OccupyAttempt], object],
    ) -> None:
        self._store = store
        self._thing = thing
        self._label = label
        self.who: str = store.sign(label)
        self._on_left_behind = on_left_behind
        self._abandoned = False
        self._done: Pending[NextAction] = Pending()

    async def outcome(self, loop: TaskEventLoop) -> NextAction:
        """Run the attempt and return its last action: USING, BUSY or REST.

        USING: the object is obtained. BUSY: another program uses it. REST: other
        programs tried at the same moment. If the caller is cancelled, no record of the
        attempt remains.

        Raises:
            BackendError: the store failed; records are removed if it can be reached.
            AcquireUncertain: a using record may remain in the store.
            Closed: ``call_off`` was called.
        """
        loop.spawn(partial(self._run, loop))
        try:
            return await self._done
        except Exception:
            raise
        except BaseException:
            await self.call_off(loop)
            raise

    async def call_off(self, loop: TaskEventLoop) -> None:
        """Abort the attempt, or give the object back if it was obtained; wait for that.

        No error is raised if the removal of the records fails.
        """
        # The task of the attempt sees the flag after its current request, whose effect
        # is known by then (test_cancelled_at_each_step).
        self._abandoned = True
        done = self._done
        if done.done() and done.error is None and done.result().do is Action.USING:
            with suppress(BackendError):
                await run_beyond_cancellation(loop, self.remove_records)
        else:
            await wait_settled(done)

    async def remove_records(self) -> None:
        """Remove all records of this attempt; raise ``BackendError`` if that failed."""
        await remove_own_record(self._store, self._thing, self.who)

    async def _run(self, loop: TaskEventLoop) -> None:
        move, promoted = FIRST_ACTION, False
        try:
            while move.do not in _FINAL_ACTIONS and not self._abandoned:
                # From here on an error leaves it open whether the object is ours.
                promoted = promoted or move.do is Action.PROMOTE
                step = partial(self._carry_out, move)
                answer = await ask_with_retries(
                    step, loop.clock, CLEANUP_TIMEOUT, self._raise_if_abandoned
                )
                move = next_action(
                    move, answer, self._store.ages, confirm=self._store.confirms
                )
            self._raise_if_abandoned()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            # A removal that is not needed could block for as long as the server is away
            # (test_what_is_certainly_not_written_is_not_removed).
            clean = _nothing_written(move, exc) or await self._cleaned()
            self._done.set_exception(exc if clean or not promoted else self._doubt(exc))
        except BaseException:
            # The loop ends: what is left in the store now stays until its age
            # (test_a_loop_that_ends_leaves_nothing).
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
                await self.remove_records()
        return None

    def _raise_if_abandoned(self) -> None:
        if self._abandoned:
            raise Closed

    async def _cleaned(self) -> bool:
        with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True):
            try:
                await self.remove_records()
            except Exception as exc:  # noqa: BLE001 - the caller waits for our end
                self._on_left_behind(self)
                log_event(log, "left_behind", error=str(exc))
                return False
            log_event(
                log, "withdrawn", logging.DEBUG, resource=self._thing, label=self._label
            )
            return True
        self._on_left_behind(self)
        return False

    def _doubt(self, exc: Exception) -> Exception:
        uncertain = AcquireUncertain(
            resource=self._thing, holder=self._label, lease=self._store.ages.using
        )
        uncertain.__cause__ = exc
        return uncertain


def _nothing_written(move: NextAction, exc: Exception) -> bool:
    return move == FIRST_ACTION and not is_uncertain(exc)


@final
class Occupied:
    """An object that this program uses alone; leaving ``async with`` gives it back.

    When its record is ``using_age`` seconds old, other programs may take this program
    for dead and occupy the object. ``check`` detects that by the local clock before it
    can happen, ``extend`` renews the record, and leaving raises ``LockLost`` if the
    record was gone. An object that is dropped without ``release`` stays occupied until
    that age (``ResourceWarning``). In a forked child process the object belongs to the
    parent: leaving gives nothing back.
    """

    def __init__(
        self,
        store: OccupancyStore,
        loop: TaskEventLoop,
        thing: str,
        who: str,
        sent_at: float,
    ) -> None:
        self._store = store
        self._loop = loop
        self._thing = thing
        self._who = who
        self._deadline = using_deadline(store, sent_at)
        self._released = self._release_tried = False
        self._inside = SingleEntry("Occupied")
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """The object's name in the store: ``kind:id``."""
        return self._thing

    @property
    def expires_in(self) -> float | None:
        """Seconds until other programs may take the record for dead; None: never."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._loop.clock.now())

    def check(self) -> None:
        """Raise if another program may be using the object; no I/O.

        Raises:
            LockLost: the record is too old.
            NotOwner: the object was given back.
            Closed: the object belongs to the process that forked this one.
        """
        self._check_process()
        if self._released:
            raise NotOwner(resource=self._thing, action="check")
        if self.expires_in == 0.0:
            raise self._lost()

    async def extend(self) -> None:
        """Renew the record, so that its age counts from now.

        If the call is cancelled, the record may have been renewed.

        Raises:
            LockLost: the record is too old or gone.
            NotOwner: the object was given back.
            Closed: the object belongs to the process that forked this one, or to
                another event loop.
            BackendError: the store failed; the record keeps its old age.
        """
        self.check()
        self._check_loop()
        sent_at = self._loop.clock.now()
        extend = partial(self._store.extend, self._thing, self._who)
        if not await run_beyond_cancellation(self._loop, extend):
            raise self._lost()
        # From before the request: the store may have renewed the record at any time
        # after that (test_extended_it_is_as_young_as_when_that_was_asked_for).
        self._deadline = using_deadline(self._store, sent_at)
        log_event(log, "renewed", logging.DEBUG, resource=self._thing)

    async def release(self) -> bool:
        """Give the object back; return False if it was given back before.

        Cancelling does not stop the removal of the record; its errors are logged then.

        Raises:
            LockLost: the record was gone; other programs may have used the object.
            Closed: the object belongs to the process that forked this one, or to
                another event loop.
            BackendError: the store failed; call ``release`` again, or the record ends
                by its age.
        """
        self._check_process()
        if self._released:
            return False
        self._check_loop()
        self._released = self._release_tried = True
        await run_beyond_cancellation(self._loop, self._remove)
        return True

    async def __aenter__(self) -> Occupied:
        # An object that was given back, or is too old, protects no body
        # (test_one_that_was_given_back_is_not_entered_again).
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
            # The body's own error hides this one (test_the_bodys_own_error_goes_first).
            log_event(log, "release_failed", resource=self._thing, error=str(lost))

    async def _remove(self) -> None:
        try:
            removed = await remove_own_record(self._store, self._thing, self._who)
        except BackendError:
            # So that `release` may be called again
            # (test_a_mount_that_is_away_for_a_while).
            self._released = False
            raise
        if not removed:
            raise self._lost()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Closed(reason="forked")

    def _check_loop(self) -> None:
        if not self._loop.here():
            raise Closed(reason="other loop")

    def _lost(self) -> LockLost:
        reason: LossReason = "expired" if self.expires_in == 0.0 else "forced"
        return LockLost(reason=reason, resource=self._thing, mode="use")

    def __del__(self) -> None:
        # No warning after a release that failed: its error was raised.
        if not getattr(self, "_release_tried", True) and os.getpid() == self._pid:
            warnings.warn(
                f"{self!r} was dropped", ResourceWarning, stacklevel=1, source=self
            )

    def __repr__(self) -> str:
        state = "given back" if self._released else "in use"
        return f"<Occupied {self._thing!r} {state}>"


def using_deadline(store: OccupancyStore, sent_at: float) -> float | None:
    """Return when other programs may begin to treat the object's user as dead.

    Return None if that never happens in this store. ``sent_at``: when the record of the
    use was requested or extended. Both times: seconds of the local monotonic clock.
    """
    age = store.ages.using
    return None if age is None else local_deadline(sent_at, age, None)


@final
class OccupyAcquisition:
    """The result of ``occupy``: ``await`` it for an ``Occupied``, or enter it."""

    def __init__(self, occupy: Callable[[], Awaitable[Occupied]]) -> None:
        self._occupy = occupy
        self._inside = SingleEntry("occupy(…)", lambda: "occupy(…)")
        self._occupied: Occupied | None = None

    def __await__(self) -> Generator[Any, Any, Occupied]:
        self._inside.used()
        return self._occupy().__await__()

    async def __aenter__(self) -> Occupied:
        with self._inside:
            self._occupied = await self._occupy()
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
