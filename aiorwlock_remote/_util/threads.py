"""Daemon threads of the library, and clear errors if no thread can be started.

They end with the process, also in the middle of their work.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import WeakSet

import anyio

from aiorwlock_remote._util.native import Thread, gevent_patched, make_thread
from aiorwlock_remote.errors import BackendUnavailable, Unsupported

T = TypeVar("T")

_FORBIDDEN = re.compile("subinterpreter|disabled in this interpreter")


def start_thread(function: Callable[[], object], name: str) -> Thread:
    """Start a daemon thread that runs ``function``; ``name`` is shown in debuggers.

    Raise ``BackendUnavailable`` if no thread can be started now, ``Unsupported`` if
    this interpreter allows none.
    """
    thread = make_thread(function, f"aiorwlock_remote {name}")
    try:
        thread.start()
    except RuntimeError as exc:
        raise thread_refused(exc) from exc
    return thread


async def run_in_thread(
    function: Callable[[], T],
    limiter: anyio.CapacityLimiter | None = None,
    *,
    abandon: bool = False,
) -> T:
    """Return what ``function()`` returns, called in a worker thread.

    Args:
        function: may block; must not wait for this event loop.
        limiter: of anyio's threads; None: the default one.
        abandon: whether a caller that is cancelled does not wait for the thread.
    """
    if not gevent_patched():
        return await anyio.to_thread.run_sync(
            function, abandon_on_cancel=abandon, limiter=limiter
        )
    # anyio's threads would be greenlets, which the end of the process waits for and
    # whose loop has ended by then. Only our background loops run here.
    import asyncio  # noqa: PLC0415 - not for trio's sake

    ended = asyncio.get_running_loop().run_in_executor(None, function)
    # If it is abandoned, no other code looks at its error.
    ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    with anyio.CancelScope(shield=not abandon):
        await asyncio.wait([ended])
    return ended.result()


async def run_blocking(function: Callable[[], object]) -> None:
    """Call ``function()`` in a worker thread, which must not raise ``RuntimeError``;
    if none can be started, call it here.
    """
    try:
        await run_in_thread(function)
    except (RuntimeError, BackendUnavailable):
        # As the process ends, Python 3.12 and later start none (sync/test_exit.py).
        function()


def thread_refused(exc: RuntimeError) -> BackendUnavailable | Unsupported:
    """Return this library's error for a ``RuntimeError`` raised by ``Thread.start``."""
    if threads_forbidden(exc):
        return Unsupported(
            what=f"this sub-interpreter cannot start threads ({exc})",
            hint="the locks need threads: connect() in the main interpreter, or in a "
            "process of its own (mod_wsgi: WSGIApplicationGroup %{GLOBAL})",
        )
    return BackendUnavailable(
        what=f"no thread could be started ({exc})",
        hint="let the process have more: ulimit -u, pids.max",
        nothing_done=True,
    )


def threads_forbidden(exc: RuntimeError) -> bool:
    """Return True if the error says that this (sub-)interpreter allows no threads."""
    return _FORBIDDEN.search(str(exc)) is not None


class FlushesAtExit(Protocol):
    """An object whose thread may have requests to finish as the process ends."""

    def finish(self) -> None:
        """Wait for a limited time until the thread's requests are done."""


def flush_at_exit(one: FlushesAtExit) -> None:
    """Call ``one.finish()`` when the process ends, if the object still exists then."""
    _finishing.add(one)


_finishing: WeakSet[FlushesAtExit] = WeakSet()


@atexit.register
def _finish() -> None:
    for one in list(_finishing):
        one.finish()
