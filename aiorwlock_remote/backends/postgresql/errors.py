"""Maps what PostgreSQL and asyncpg raise to this library's errors, by SQLSTATE.

A statement that fails has changed nothing, unless the error is about the connection.
"""

from __future__ import annotations

from ssl import SSLCertVerificationError

import asyncpg

from aiorwlock_remote._util.tls import certificate_not_trusted
from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.cas import CasContention, RowLocked
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Lacks,
    Unsupported,
)

Failure = BackendError | ConfigurationError
PostgresError: type[Exception] = asyncpg.PostgresError

# The connection or the server has ended: the outcome of the request is not known.
_UNKNOWN = ("08", "57P01", "57P02", "57P05", "XX")
_CONTENTION = {"40001", "40P01"}
"""SQLSTATEs of a statement undone because another transaction came first."""
LIMIT_EXCEEDED = "54000"
"""SQLSTATE of a name too long for an index, and of a full queue of notifications."""
_LOCKED = "55P03"  # the time to wait for a row was over
REFUSED = {"22012"} | _CONTENTION
"""SQLSTATEs of a refused step. ``statements.sql`` refuses by a division by zero."""

_MAKES = SCHEMA.partition(" prints")[0] + " makes"
_REWRITTEN = ("0A000", "55000")
_REWRITTEN_HINT = (
    "a rule or a view changes what is asked of the table: use the plain tables that "
    f"{_MAKES}, and DROP RULE … ON them"
)
_Lacking = tuple[tuple[tuple[str, ...], str, Lacks], ...]
_LACKING: _Lacking = (
    (("28", "3D000"), "postgresql://user:password@host/database", ""),
    (("23", "42P01", "42703", "3F000", "42804", "42883"), SCHEMA, "tables"),
    (
        ("42501",),
        "GRANT SELECT, INSERT, UPDATE, DELETE ON mutex_locks, doormans TO …",
        "rights",
    ),
    # A prepared statement that another session has, or has not.
    (
        ("26000", "0A000", "42P05"),
        "behind PgBouncer in transaction mode: ?statement_cache=no",
        "",
    ),
)
"""SQLSTATEs, the hint for the user, and what the server or the role lacks."""
_TOO_LONG = (
    f"a column of mutex_locks or doormans is shorter than {_MAKES} it: widen it by "
    "ALTER TABLE, or take a shorter name for the resource"
)
_VALUES = (
    (("22001",), _TOO_LONG),
    (("22021", "22P05", LIMIT_EXCEEDED), "another name for the resource"),
)
"""SQLSTATEs of a value that a column does not take, each with what to change."""
_IN_FAILED_TRANSACTION = "25P02"
# Any other one, such as a standby's 25006 or 53… of a full server, is a server that is
# not available now and has done nothing.


def code_of(exc: BaseException) -> str:
    """Return the SQLSTATE of an exception, or an empty text if it has none."""
    return getattr(exc, "sqlstate", None) or ""


def is_contention(exc: BaseException) -> bool:
    """Return True if a conflict with another transaction undid the statement."""
    return code_of(exc) in _CONTENTION


def is_broken(exc: BaseException) -> bool:
    """Return True if the connection cannot be used again after this error."""
    return not isinstance(exc, PostgresError) or code_of(exc).startswith(_UNKNOWN)


def message_of(exc: BaseException) -> str:
    """Return the message in one line, without the details, which show users' rows."""
    text = exc.args[0] if isinstance(exc, PostgresError) and exc.args else exc
    return " ".join(str(text).split()) or type(exc).__name__


def from_driver(exc: BaseException, where: str) -> Failure:
    """Return this library's error for a request's exception; ``where``: the server."""
    if isinstance(exc, BackendError | ConfigurationError):
        return exc
    if isinstance(exc, SSLCertVerificationError):
        return certificate_not_trusted(where, exc.verify_message)
    code = code_of(exc)
    what = f"{where}: {message_of(exc)}"
    if not code or code.startswith(_UNKNOWN):
        return BackendUnavailable(what=what)
    if code in _CONTENTION:
        return CasContention(what=what, nothing_done=True)
    if code == _LOCKED:
        return RowLocked(what=what, nothing_done=True)
    lacking: _Lacking = _LACKING
    # The same code is used for "cached plan must not change result type", where the
    # session is another one behind a pooler (test_pgbouncer.py).
    if code in _REWRITTEN and "plan" not in what.lower():
        lacking = ((_REWRITTEN, _REWRITTEN_HINT, "tables"),)
    for codes, hint, lacks in lacking:
        if code.startswith(codes):
            return Unsupported(what=what, hint=hint, nothing_done=True, lacks=lacks)
    for codes, hint in _VALUES:
        if code.startswith(codes):
            return ConfigurationError(what=what, hint=hint, refused="value")
    if code == _IN_FAILED_TRANSACTION:
        return ConfigurationError(what=what, hint="ROLLBACK comes first")
    return BackendUnavailable(what=what, nothing_done=True)
