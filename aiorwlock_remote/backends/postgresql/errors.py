"""What PostgreSQL and asyncpg raise → what we raise. The only place for that, by code.

==================================  ====================  ================
SQLSTATE, or what asyncpg raises    we raise              carried out?
==================================  ====================  ================
08… 57P01 57P02 57P05 XX…           BackendUnavailable    perhaps
57014 (cancelled by another one)    BackendUnavailable    no
57P03 53… (starting, full)          BackendUnavailable    no
40001 40P01 (met another one)       CasContention         no
55P03 (waited too long)             RowLocked             no
25006 (read-only: a standby)        BackendUnavailable    no
28… 3D000                           Unsupported           no: log in
23… 42P01 42703 3F000 42804 42883   Unsupported           no: tables
42501                               Unsupported           no: grants
26000 42P05 0A000 (of another one)  Unsupported           no: PgBouncer
0A000 55000 (a rule, a view)        Unsupported           no: tables
22001 (too long for a column)       ConfigurationError    no: name or column
22021 22P05 54000                   ConfigurationError    no: a bad name; 54000 of
                                                          NOTIFY: see ``executor``
25P02 (a transaction that failed)   ConfigurationError    no
any other of the server's           BackendUnavailable    no
InterfaceError, connection lost     BackendUnavailable    perhaps
TimeoutError                        BackendUnavailable    perhaps, or later
OSError                             BackendUnavailable    perhaps
SSLCertVerificationError            Unsupported           no
==================================  ====================  ================

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
    Unsupported,
)

Failure = BackendError | ConfigurationError
PostgresError: type[Exception] = asyncpg.PostgresError

_UNKNOWN = ("08", "57P01", "57P02", "57P05", "XX")
_LOGIN = ("28", "3D000")
_TABLES = ("23", "42P01", "42703", "3F000", "42804", "42883")
_NAMES = ("22021", "22P05", "54000")
_REWRITTEN = ("0A000", "55000")
_PLAIN = (
    "a rule or a view changes what is asked of the table: use the plain tables that "
    f"{SCHEMA.partition(' prints')[0]} makes, and DROP RULE … ON them"
)
TOO_LONG = (
    "a column of mutex_locks or doormans is shorter than "
    f"{SCHEMA.partition(' prints')[0]} makes it: widen it by ALTER TABLE, or take a "
    "shorter name for the resource"
)
_FORGOTTEN = ("26000", "0A000", "42P05")
_CONTENTION = {"40001", "40P01"}
"""SQLSTATEs of which another transaction came first; this one was not carried out."""
LIMIT_EXCEEDED = "54000"
"""SQLSTATE of a name too long for an index, and of a full queue of notifications."""
_LOCKED = "55P03"
REFUSED = {"22012"} | _CONTENTION
"""SQLSTATEs of a refused step. The division by zero is ours, see ``statements.sql``."""

_LACKING = (
    (_LOGIN, "postgresql://user:password@host/database"),
    (_TABLES, SCHEMA),
    ("42501", "GRANT SELECT, INSERT, UPDATE, DELETE ON mutex_locks, doormans TO …"),
    (_FORGOTTEN, "behind PgBouncer in transaction mode: ?statement_cache=no"),
)
"""SQLSTATEs of what the server or the role lacks, each with what to do about it."""
_UNUSABLE = (
    ("22001", TOO_LONG),
    (_NAMES, "another name for the resource"),
    ("25P02", "ROLLBACK comes first"),
)
"""SQLSTATEs of a bad request, each with what to change."""


def code_of(exc: BaseException) -> str:
    """Return the SQLSTATE of an exception, or an empty text."""
    return getattr(exc, "sqlstate", None) or ""


def is_contention(exc: BaseException) -> bool:
    """Return whether the statement failed because another transaction came first."""
    return code_of(exc) in _CONTENTION


def is_broken(exc: BaseException) -> bool:
    """Return whether the error leaves its connection unusable."""
    return not isinstance(exc, PostgresError) or code_of(exc).startswith(_UNKNOWN)


def message_of(exc: BaseException) -> str:
    """Return the message in one line, without the details: they show users' rows."""
    text = exc.args[0] if isinstance(exc, PostgresError) and exc.args else exc
    return " ".join(str(text).split()) or type(exc).__name__


def from_driver(exc: BaseException, where: str) -> Failure:
    """Return our error for what the driver raised during one request.

    Args:
        exc: What was raised.
        where: The server, for the message.
    """
    if isinstance(exc, BackendError | ConfigurationError):
        return exc
    code = code_of(exc)
    what = f"{where}: {message_of(exc)}"
    if not code or code.startswith(_UNKNOWN):
        return BackendUnavailable(what=what)
    if code in _CONTENTION:
        return CasContention(what=what, nothing_done=True)
    if code == _LOCKED:
        return RowLocked(what=what, nothing_done=True)
    lacking = _LACKING
    # The same code is used for "cached plan must not change result type", where the
    # session is another one behind a pooler (test_pgbouncer.py).
    if code in _REWRITTEN and "plan" not in what.lower():
        lacking = ((_REWRITTEN, _PLAIN),)
    for codes, hint in lacking:
        if code.startswith(codes):
            return Unsupported(what=what, hint=hint, nothing_done=True)
    for codes, hint in _UNUSABLE:
        if code.startswith(codes):
            return ConfigurationError(what=what, hint=hint)
    return BackendUnavailable(what=what, nothing_done=True)


def from_connecting(exc: BaseException, where: str) -> Failure:
    """Return our error for what was raised before any request was sent."""
    if isinstance(exc, SSLCertVerificationError):
        return certificate_not_trusted(where, exc.verify_message)
    error = from_driver(exc, where)
    if isinstance(error, BackendError):
        error.nothing_done = True
    return error
