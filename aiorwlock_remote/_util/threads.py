"""Threads of our own. A process or a host that may have no more of them says so.

They end with the process, also in the middle of what they have to do.
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
    """A thread that runs ``function``; it keeps no process alive.

    Raises:
        BackendUnavailable: none could be started.
        Unsupported: this interpreter allows none.
    """
    thread = threading.Thread(
        target=function, name=f"aiorwlock_remote {name}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as exc:
        raise thread_refused(exc) from exc
    return thread


def thread_refused(exc: RuntimeError) -> BackendUnavailable | Unsupported:
    """The error of ours for a thread that could not be started."""
    if threads_forbidden(exc):
        return Unsupported(
            what=f"this sub-interpreter may start no threads ({exc})",
            hint="the locks need threads: connect() in the main interpreter, or in a "
            "process of its own (mod_wsgi: WSGIApplicationGroup %{GLOBAL})",
        )
    return BackendUnavailable(
        what=f"no thread could be started ({exc})",
        hint="let the process have more: ulimit -u, pids.max",
        nothing_done=True,
    )


def threads_forbidden(exc: RuntimeError) -> bool:
    """Whether it is the interpreter that allows no threads, now and for ever."""
    return _FORBIDDEN.search(str(exc)) is not None


class FlushesAtExit(Protocol):
    """What has a thread that may have something to do when the process ends."""

    def finish(self) -> None:
        """Wait until what was asked for is done, for a while at most."""


def flush_at_exit(one: FlushesAtExit) -> None:
    """A process that ends without closing its locks: what it sent is carried out."""
    _finishing.add(one)


_finishing: WeakSet[FlushesAtExit] = WeakSet()


@atexit.register
def _finish() -> None:
    for one in list(_finishing):
        one.finish()
