"""Transactions that are open in a thread that acquires or releases a lock.

A lock that is released before the transaction of its block is committed protects
nothing: the next holder reads what was there before, and one of two changes is lost. So
the lock has to be acquired first, and the transaction begun inside of it. Django shows
its transactions, inside of which no lock is acquired. For sessions of SQLAlchemy there
is a warning.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.sync.sessions import changed_sessions, watch_sessions

log: logging.Logger = logging.getLogger("aiorwlock_remote.held")

_ignored: ContextVar[bool] = ContextVar("aiorwlock_remote_ignored", default=False)


@contextmanager
def ignore_transactions() -> Iterator[None]:
    """Let this thread acquire locks in the block although a transaction is open, and
    release them without a warning.

    For a lock that guards something else than what the transaction changes, such as a
    file, or that is released after the commit, by
    ``transaction.on_commit(held.release)``.
    """
    token = _ignored.set(True)
    try:
        yield
    finally:
        _ignored.reset(token)


def check_transactions(wanted: object) -> None:
    """Raise ``ConfigurationError`` if this thread is inside of ``atomic()``.

    ``wanted``: what is to be acquired, for the error.
    """
    watch_sessions()
    for alias in open_transactions():
        raise _refused(
            f"{wanted!r} cannot be acquired",
            alias,
            hint="acquire the lock first and begin atomic() inside of it; under "
            "ATOMIC_REQUESTS use hold, or transaction.non_atomic_requests",
        )


def refuse_transactions(what: str, *, hint: str) -> None:
    """Raise ``ConfigurationError``, which begins with ``what``, inside of a transaction
    of Django in this thread.
    """
    for alias in open_transactions():
        raise _refused(what, alias, hint=hint)


def _refused(what: str, alias: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"{what} inside of a transaction of the database {alias!r}: others "
        "would get the lock before its changes are committed",
        hint=hint,
    )


def tell_of_changes(released: object) -> None:
    """Log a warning for each session whose changes are not committed by now.

    ``released``: the grant, for the log.
    """
    for session in () if _ignored.get() else changed_sessions():
        log_event(log, "released_before_commit", grant=released, session=session)


def open_transactions() -> Iterator[str]:
    """Yield the aliases of the databases in whose ``atomic()`` this thread is; none
    inside of ``ignore_transactions()``.

    The blocks in which ``django.test.TestCase`` wraps each test do not count: Django's
    ``durable=True`` overlooks them, too (test_a_test_case_is_no_transaction).
    """
    conf: Any = sys.modules.get("django.conf")
    db: Any = sys.modules.get("django.db")
    # A thread may just import Django, or the program may use no database of it.
    connections = getattr(db, "connections", None)
    if _ignored.get() or connections is None or not conf.settings.configured:
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            continue
        blocks = getattr(connection, "atomic_blocks", (None,))
        if not all(getattr(block, "_from_testcase", False) for block in blocks):
            yield connection.alias
