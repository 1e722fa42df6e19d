"""Sessions of SQLAlchemy that have changes when their thread releases a lock.

A session cannot be made to commit inside of a lock, and one that has only read may go
on afterwards. So the library listens to what sessions do, which SQLAlchemy offers for
all of them, and says it if a lock is released between a change and its commit.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_WRITES = re.compile(r"\s*(insert|update|delete|merge)\b", re.IGNORECASE)


class _Begun(threading.local):
    def __init__(self) -> None:
        # Sessions with a transaction that this thread has begun, and whether it has
        # sent a change.
        self.sessions: weakref.WeakKeyDictionary[Any, bool] = (
            weakref.WeakKeyDictionary()
        )


_begun = _Begun()
_watched: list[object] = []


def watch_sessions() -> None:
    """Listen to the sessions of this process from now on, if it uses any."""
    orm: Any = sys.modules.get("sqlalchemy.orm")
    session = getattr(orm, "Session", None)
    # Versions before 1.4 do not have the event.
    if session is None or _watched or not hasattr(session, "in_transaction"):
        return
    _watched.append(session)
    listen = sys.modules["sqlalchemy"].event.listen
    listen(session, "after_transaction_create", _after_transaction_create)
    listen(session, "after_flush", _after_flush)
    listen(session, "do_orm_execute", _do_orm_execute)
    listen(session, "after_transaction_end", _after_transaction_end)


def changed_sessions() -> Iterator[object]:
    """Yield the sessions of this thread with changes that are not committed."""
    if not _watched:  # no session of this process is listened to
        return
    for session, sent in list(_begun.sessions.items()):
        if session.in_transaction() and (
            sent or session.new or session.dirty or session.deleted
        ):
            yield session


def _after_transaction_create(session: object, _transaction: object) -> None:
    _begun.sessions.setdefault(session, False)


def _after_flush(session: object, _context: object) -> None:
    _begun.sessions[session] = True


def _do_orm_execute(state: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
    text = getattr(state.statement, "text", None)
    by_hand = isinstance(text, str) and _WRITES.match(text)
    if by_hand or state.is_insert or state.is_update or state.is_delete:
        _begun.sessions[state.session] = True


def _after_transaction_end(session: object, transaction: Any) -> None:  # noqa: ANN401
    if transaction.parent is None:
        _begun.sessions.pop(session, None)
