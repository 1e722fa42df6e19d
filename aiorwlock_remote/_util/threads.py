"""Daemon threads of the library, and clear errors if none may be started.

They end with the process, also in the middle of their work.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from aiorwlock_remote.errors import BackendUnavailable, Unsupported

_FORBIDDEN = re.compile("subinterpreter|disabled in this interpreter")


def start_thread(function: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread that runs ``function``.

    Raises:
        BackendUnavailable: No thread could be started.
        Unsupported: This interpreter allows no threads.
    """
    # A daemon, so that a program that never closes its locks can still end.
    thread = threading.Thread(
        target=function, name=f"aiorwlock_remote {name}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as exc:
        raise thread_refused(exc) from exc
    return thread


def thread_refused(exc: RuntimeError) -> BackendUnavailable | Unsupported:
    """Return our error for a thread that could not be started."""
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
    """Return whether the interpreter allows no threads at all (a sub-interpreter)."""
    return _FORBIDDEN.search(str(exc)) is not None


class FlushesAtExit(Protocol):
    """An object whose thread may have requests left when the process ends."""

    def finish(self) -> None:
        """Wait, for a limited time, until they are done."""


def flush_at_exit(one: FlushesAtExit) -> None:
    """Finish the object's requests when the process ends without closing its locks."""
    _finishing.add(one)


_finishing: WeakSet[FlushesAtExit] = WeakSet()


@atexit.register
def _finish() -> None:
    for one in list(_finishing):
        one.finish()
