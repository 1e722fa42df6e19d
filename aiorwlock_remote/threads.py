"""Threads of our own. A process or a host that may have no more of them says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from aiorwlock_remote.errors import BackendUnavailable


def running(function: Callable[[], object], name: str) -> threading.Thread:
    """A thread that runs ``function``; it keeps no process alive.

    Raises:
        BackendUnavailable: none could be started.
    """
    thread = threading.Thread(
        target=function, name=f"aiorwlock_remote {name}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as exc:
        raise refused(exc) from exc
    return thread


def refused(exc: RuntimeError) -> BackendUnavailable:
    """The error of ours for a thread that could not be started."""
    return BackendUnavailable(
        what=f"no thread could be started ({exc})",
        hint="let the process have more: ulimit -u, pids.max",
        nothing_done=True,
    )
