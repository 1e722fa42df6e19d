"""Daemon threads of the library, and clear errors if no thread can be started.

They end with the process, also in the middle of their work.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import anyio

from aiorwlock_remote._util.native import Thread, make_thread
from aiorwlock_remote.errors import BackendUnavailable, Unsupported

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


async def run_blocking(function: Callable[[], object]) -> None:
    """Call ``function()`` in a worker thread, which must not raise ``RuntimeError``;
    if none can be started, call it here.
    """
    try:
        await anyio.to_thread.run_sync(function)
    except RuntimeError:
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
