"""Log records, and calls of users' code.

Events at DEBUG say why a waiter was late, a lock lost or a request slow. On a hot path
the caller checks ``log.isEnabledFor(logging.DEBUG)`` first.
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

# Seconds after which an interrupt that hit the user's code is raised again.
INTERRUPT_DELAY = 0.1


def log_event(
    log: logging.Logger,
    event: str,
    level: int = logging.WARNING,
    *,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """Log one record whose text is ``event field=value …``, on one line.

    The fields are also attributes of the record, at full length. All records of an
    event have the same ``msg``, by which log tools group them. Never pass a ticket: a
    grant is named by its holder id.
    """
    if not log.isEnabledFor(level):
        return
    template = " ".join((event, *(f"{name}=%({name})s" for name in fields)))
    shown = {name: one_line(str(value), MAX_REASON) for name, value in fields.items()}
    # Handlers, filters and formatters are the user's code, called in the middle of our
    # own work: an exception of theirs must not end the renewal thread
    # (tests/locks/test_raising_callbacks.py).
    try:
        args = (shown,) if shown else ()
        log.log(level, template, *args, exc_info=exc_info, extra=fields, stacklevel=2)
    except BaseException as exc:  # noqa: BLE001 - see ``guarded``
        _swallowed(exc)
        _print(exc)


def guarded(
    log: logging.Logger, failed: str, function: Callable[..., object], *args: object
) -> None:
    """Call ``function(*args)``, the user's code. If it raises, log the error as the
    event named ``failed``, and return.
    """
    # ``SystemExit`` is no way to end a program from here. Ctrl-C may land in any code,
    # so ``KeyboardInterrupt`` is raised again when our own work is done. Without this,
    # a callback that fails would keep the body of a lost lock running.
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
    if not logging.raiseExceptions or sys.stderr is None:
        return
    with suppress(Exception):  # stderr itself may be broken
        traceback.print_exception(exc, file=sys.stderr)
