"""Maps what servers and asyncmy raise to this library's errors, by the server's code.

A statement that fails has changed nothing, unless the error is about the connection or
the commit. ``run`` rolls its transaction back. MariaDB's own codes are 1020, 1927, 1969
and 4025; those from 3000 to 4024 and 4031 are MySQL's.
"""

from __future__ import annotations

import errno
import ssl

from asyncmy import errors as asyncmy_errors

from aiorwlock_remote._util.tls import certificate_not_trusted
from aiorwlock_remote.backends.mariadb.dialect import ServerDialect
from aiorwlock_remote.cas import CasContention, RowLocked
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Lacks,
    Unsupported,
)

Failure = BackendError | ConfigurationError
Error: type[Exception] = asyncmy_errors.MySQLError

DUPLICATE = 1062
"""Code of an insert whose row exists already."""
NOT_CHANGED = 1690
"""Code of a number out of range: of a statement of a step, if the one before changed no
row."""
CHANGED = 1020
"""Code for a row newer than the transaction's snapshot: MariaDB 11.6.2 and later."""
UNKNOWN_VARIABLE = 1193
"""Code for a session variable that the server does not have."""

# The driver has lost the connection, or the server has ended it: the outcome of the
# request is not known.
_CLIENT = range(2000, 3000)
_GONE = {1053, 1152, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1927, 3169, 4031}
# The commit failed: it may have been done in part, as by the other members of a group.
_COMMIT_FAILED = {1180, 3100}
# 3101: a member of the group has changed the row first, and all have rolled this back.
_CONTENTION = {1213, CHANGED, 3101}
_LOCKED = {1205, 1969, 3024, 3572}  # the time to wait for a row was over
# The server is read-only: a replica, or a former primary of a group.
_READ_ONLY = {1290, 1836}
_NOT_LET_IN = {1044, 1045, 1049, 1698, 1130, 1862, 1820, 3118}
_BAD_TABLES = {1146, 1054, 1364, 1932, 1267, 1271, 1048, 1452, 3098, 3819, 4025}
ROW_EVENTS = "SET GLOBAL binlog_format = 'MIXED'"
_LACKING: tuple[tuple[set[int], str, Lacks], ...] = (
    (
        {1142, 1143, 1227},
        "GRANT SELECT, INSERT, UPDATE, DELETE ON mutex_locks, and on doormans",
        "rights",
    ),
    ({1665}, ROW_EVENTS, ""),
    ({3159}, "?tls=yes", ""),
)
"""Codes, the hint for the user, and what the server or the user lacks."""
OTHER_NAME = "another name for the resource"
_UNUSABLE = (
    ({1104}, "SET SESSION sql_big_selects = ON"),
    ({1175}, "SET SESSION sql_safe_updates = OFF"),
)
"""Codes of an unusable session, each with what to change."""
_BAD_VALUE = {1366, 1300, 1264, 1153}
_TOO_LONG = 1406
_NO_SOCKET = "not expose socket"  # asyncmy's words for a transport of uvloop that ended
_LOST = 2013
_CLOSED = "the server closed the connection while it was opened"
# Any other one, such as a replica's 1290 or 1040 of a full server, is a server that is
# not available now and has done nothing.


def code_of(exc: BaseException) -> int:
    """Return the error number that the server or asyncmy gave, or 0 if it gave none."""
    code = exc.args[0] if isinstance(exc, Error) and exc.args else 0
    return code if isinstance(code, int) else 0


def is_contention(exc: BaseException) -> bool:
    """Return True if a conflict with another transaction undid the statement."""
    return code_of(exc) in _CONTENTION


def is_broken(exc: BaseException) -> bool:
    """Return True if the connection cannot be used again after this error."""
    code = code_of(exc)
    return not code or code in _CLIENT or code in _GONE or code in _COMMIT_FAILED


def is_unusable(exc: BaseException) -> bool:
    """Return True if the connection should be closed after this error.

    After a failover the connection to a former primary stays open, and the server
    refuses all requests. A new connection may reach the new primary, by a name or a
    proxy (test_mysql.py, test_mysql_group.py).
    """
    return is_broken(exc) or code_of(exc) in _READ_ONLY


def message_of(exc: BaseException) -> str:
    """Return the message of an error in one line."""
    text = exc.args[1] if isinstance(exc, Error) and len(exc.args) > 1 else exc
    return " ".join(str(text).split()) or type(exc).__name__


def from_driver(exc: BaseException, where: str, dialect: ServerDialect) -> Failure:
    """Convert an exception of a request to this library's; ``where``: the server."""
    if isinstance(exc, BackendError | ConfigurationError):
        return exc
    code = code_of(exc)
    what = f"{where}: {message_of(exc)}"
    if is_broken(exc):
        return BackendUnavailable(what=what)
    if code in _CONTENTION:
        return CasContention(what=what, nothing_done=True)
    if code in _LOCKED:
        return RowLocked(what=what, nothing_done=True)
    lacking: tuple[tuple[set[int], str, Lacks], ...] = (
        (_NOT_LET_IN, dialect.example_url, ""),
        (_BAD_TABLES, dialect.schema_hint, "tables"),
        *_LACKING,
    )
    for codes, hint, lacks in lacking:
        if code in codes:
            return Unsupported(what=what, hint=hint, nothing_done=True, lacks=lacks)
    for codes, hint in _UNUSABLE:
        if code in codes:
            return ConfigurationError(what=what, hint=hint)
    for codes, hint in ((_BAD_VALUE, OTHER_NAME), ({_TOO_LONG}, _too_long(dialect))):
        if code in codes:
            return ConfigurationError(what=what, hint=hint, refused="value")
    return BackendUnavailable(what=what, nothing_done=True)


def _too_long(dialect: ServerDialect) -> str:
    return (
        f"the column is shorter than `rwlock schema {dialect.scheme}` makes it: widen "
        "it by ALTER TABLE … MODIFY; if it is resource_type, a shorter name for the "
        "resource fits, too"
    )


def from_connecting(exc: BaseException, where: str, dialect: ServerDialect) -> Failure:
    """Convert an exception of connecting to this library's; ``where``: the server."""
    cause: BaseException | None = exc
    while cause is not None:  # asyncmy wraps what TLS and the socket raise
        if isinstance(cause, ssl.SSLCertVerificationError):
            return certificate_not_trusted(where, cause.verify_message)
        # asyncmy sets options of the socket that the server may have closed by then.
        closed = isinstance(cause, OSError) and cause.errno == errno.EBADF
        if closed or _NO_SOCKET in str(cause) or code_of(cause) == _LOST:
            return BackendUnavailable(what=f"{where}: {_CLOSED}", nothing_done=True)
        cause = cause.__cause__ or cause.__context__
    error = from_driver(exc, where, dialect)
    if isinstance(error, BackendError):
        error.nothing_done = True
    return error
