"""What goes to the log, and how code of the user's is called.

Observers, ``on_lost`` and the handlers, filters and formatters of the log are the
user's: they are called in the middle of our own work, and whatever they raise ends in
``guarded``. Else a handler that fails would keep a lost body running, or end a thread
that renews (tests/locks/test_raising.py).
"""

from __future__ import annotations

import _thread
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

from aiorwlock_remote.core.text import MAX_REASON, one_line

INTERRUPT_DELAY = 0.1
"""Seconds after which an interrupt that came amid code of the user's is given again."""


def log_event(
    log: logging.Logger,
    event: str,
    level: int = logging.WARNING,
    *,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """One record, whose text is ``event field=value …``, on one line.

    The fields are attributes of the record as well, as they are. All records of an
    event have the same ``msg``, by which tools put them together.
    """
    template = " ".join((event, *(f"{name}=%({name})s" for name in fields)))
    shown = {name: one_line(str(value), MAX_REASON) for name, value in fields.items()}
    try:
        told = (shown,) if shown else ()  # one without fields is text as it is
        log.log(level, template, *told, exc_info=exc_info, extra=fields, stacklevel=2)
    except BaseException as exc:  # noqa: BLE001 - see ``guarded``
        _swallowed(exc)
        _print(exc)


def guarded(
    log: logging.Logger, failed: str, function: Callable[..., object], *args: object
) -> None:
    """Call code of the user's. What it raises is logged as ``failed``, and ends here.

    Also ``SystemExit``, which is no way to end a program from there, and
    ``KeyboardInterrupt``: of Ctrl-C nobody knows where it lands, so it is given again
    when what we are about is done.
    """
    try:
        function(*args)
    except BaseException as exc:  # noqa: BLE001 - as above
        _swallowed(exc)
        log_event(log, failed, logging.ERROR, exc_info=exc)


def _swallowed(exc: BaseException) -> None:
    in_main = threading.current_thread() is threading.main_thread()
    if isinstance(exc, KeyboardInterrupt) and in_main:
        timer = threading.Timer(INTERRUPT_DELAY, _thread.interrupt_main)
        timer.daemon = True
        timer.start()


def _print(exc: BaseException) -> None:
    """As ``logging`` does with what its handlers raise."""
    if not logging.raiseExceptions or sys.stderr is None:
        return
    with suppress(Exception):  # there is nobody left to be told
        traceback.print_exception(exc, file=sys.stderr)
