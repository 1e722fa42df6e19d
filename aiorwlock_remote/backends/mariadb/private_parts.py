"""The private parts of asyncmy that this package uses, each with a way around it."""

from __future__ import annotations

import operator
from typing import Any

from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.cas.driver.pool import has_input

_MISSING = object()


def abort(connection: Any) -> None:  # noqa: ANN401 - asyncmy's
    """Close a connection without waiting for its server."""
    # asyncmy's ``close`` alone would wait for a TLS peer to say goodbye
    # (test_unanswered_calls.py).
    transport: Any = getattr(connection, "_transport", _MISSING)
    connection.close()
    if transport is None:
        return
    try:
        transport.abort()
    except AttributeError:
        instead = "close(), which waits for a TLS peer that says nothing"
        report_differing("asyncmy", "Connection._transport", instead)


def is_broken(connection: Any) -> bool:  # noqa: ANN401
    """Return True if the stream of a connection without a request has ended."""
    broken: object = getattr(connection, "_stream_broken", _MISSING)
    if isinstance(broken, bool):
        transport: object = getattr(connection, "_transport", None)
        return broken or (transport is not None and has_input(transport))
    instead = "a connection that the server has closed fails in its next request"
    report_differing("asyncmy", "Connection._stream_broken", instead)
    return False


def set_status(connection: Any, cursor: Any) -> None:  # noqa: ANN401
    """Store the status of the cursor's last statement in its connection."""
    # asyncmy takes a status of 0 (no autocommit, no transaction) for none at all and
    # keeps the one before, of an open transaction. Its pool closes such a connection:
    # each request would open another one (test_pool.py).
    result: Any = getattr(cursor, "_result", None)
    status: Any = getattr(result, "server_status", None)
    try:
        connection.server_status = operator.index(status)
    except (AttributeError, TypeError):
        instead = "a pool without autocommit opens a connection for each request"
        report_differing("asyncmy", "Cursor._result.server_status", instead)
