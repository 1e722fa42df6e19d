"""Replies that may come later, awaitable on asyncio and trio alike.

Every request waits on a ``Pending``, so it uses the running library's primitives
directly: a future of asyncio, a parked task of trio. Neither library is imported for
the other's sake.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar

from aiorwlock_remote.logs import log_event

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Pending(Generic[T]):
    """A reply that may come later: awaitable on asyncio and trio, any number of times.

    Cancelling a task that awaits the reply does not cancel the request. Results are set
    in the event loop's own thread only.
    """

    __slots__ = ("_callbacks", "_done", "_future", "_value", "error")

    def __init__(self) -> None:
        self._done = False
        self._value: T | None = None
        self.error: BaseException | None = None
        """The exception the request failed with; None if it has not failed so far."""
        self._callbacks: list[Callable[[Pending[T]], object]] | None = None
        self._future: Any = None  # asyncio's, of the first task that waits

    def done(self) -> bool:
        return self._done

    def set_result(self, value: T) -> None:
        """Set the reply, which may be done only once, and run the callbacks."""
        assert not self._done, "a Pending is resolved once"
        self._value = value
        self._done = True
        callbacks = self._callbacks
        if callbacks is not None:
            self._callbacks = None
            for callback in callbacks:
                callback(self)
        future = self._future
        # A cancelled task has cancelled its future; a result would raise here.
        if future is not None and not future.done():
            future.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        assert not self._done, "a Pending is resolved once"
        self.error = error
        self.set_result(None)  # type: ignore[arg-type]  # no value: it raises

    def result(self) -> T:
        """Return the reply, or raise the request's error; valid once ``done()``."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # resolved with a T

    def add_done_callback(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call ``callback(self)`` on the reply or error; at once if it has come."""
        if self._done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def log_failure(self) -> None:
        """Log the error if the request fails; for replies that no task awaits."""
        self.add_done_callback(_log_failure)

    def __await__(self) -> Generator[Any, Any, T]:
        # A program on asyncio must not pay for importing trio, nor the other way round,
        # so the library in use is looked up among the modules that are loaded.
        if not self._done:
            trio = sys.modules.get("trio")
            if trio is not None and trio.lowlevel.in_trio_task():
                yield from _parked(self, trio.lowlevel)
            else:
                asyncio: Any = sys.modules["asyncio"]
                future = asyncio.get_running_loop().create_future()
                # The first task waits without a callback object: nearly all replies
                # have one waiter.
                if self._future is None:
                    self._future = future
                else:
                    self.add_done_callback(partial(_wake, future))
                yield from future
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # resolved with a T


class InFlight:
    """The set of requests whose replies have not come yet."""

    __slots__ = ("_answers", "_idle")

    def __init__(self) -> None:
        self._answers: set[Pending[Any]] = set()
        self._idle: Pending[None] | None = None

    def add(self, pending: Pending[T]) -> Pending[T]:
        """Count a request as in flight until its reply comes; return the reply."""
        self._answers.add(pending)
        pending.add_done_callback(self._done)
        return pending

    async def wait_closed(self) -> None:
        """Wait until no request is in flight, not even one that a reply has started."""
        # A callback of the last reply may send another request: look again each time.
        while self._answers:
            if self._idle is None:
                self._idle = Pending()
            await self._idle

    def _done(self, pending: Pending[Any]) -> None:
        self._answers.discard(pending)
        if not self._answers and self._idle is not None:
            idle, self._idle = self._idle, None
            idle.set_result(None)


@coroutine
def checkpoint() -> Generator[Any, Any, None]:
    """Let other tasks run, and let a cancellation of this task take effect."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        yield from trio.lowlevel.checkpoint().__await__()
    else:
        yield  # as ``asyncio.sleep(0)``


def map_pending(pending: Pending[A], change: Callable[[A], B]) -> Pending[B]:
    """Return a ``Pending`` of ``change(reply)``; it fails if the request fails."""
    changed: Pending[B] = Pending()

    def done(answer: Pending[A]) -> None:
        try:
            result = change(answer.result())
        except Exception as exc:  # noqa: BLE001 - raised where it is awaited
            changed.set_exception(exc)
            return
        changed.set_result(result)

    pending.add_done_callback(done)
    return changed


def gather_pending(
    pendings: Sequence[Pending[A]], change: Callable[[list[A]], B]
) -> Pending[B]:
    """Return a ``Pending`` of ``change(replies)``; it fails with the first error."""
    last: Pending[None] = Pending()
    missing = len(pendings)

    def done(_: Pending[A]) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            last.set_result(None)

    for each in pendings:
        each.add_done_callback(done)
    return map_pending(last, lambda _: change([each.result() for each in pendings]))


def _wake(future: Any, _: Pending[Any]) -> None:  # noqa: ANN401 - asyncio's, not always there
    if not future.done():
        future.set_result(None)


def _parked(pending: Pending[Any], lowlevel: Any) -> Generator[Any, Any, None]:  # noqa: ANN401 - trio's module, not always there
    task, parked = lowlevel.current_task(), True

    def wake(_: Pending[Any]) -> None:
        if parked:
            lowlevel.reschedule(task)

    def abort(_: object) -> object:
        nonlocal parked
        parked = False
        return lowlevel.Abort.SUCCEEDED

    pending.add_done_callback(wake)
    yield from lowlevel.wait_task_rescheduled(abort).__await__()


def _log_failure(pending: Pending[Any]) -> None:
    if pending.error is not None:
        log_event(log, "request_failed", error=str(pending.error))
