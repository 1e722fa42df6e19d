"""Maps what MariaDB and asyncmy raise to this library's errors, by the server's code.

A statement that fails has changed nothing, unless the error is about the connection.
``run`` rolls its transaction back. Only 1020 and 1969 are MariaDB's own codes.
"""

from __future__ import annotations

import ssl

from asyncmy import errors as asyncmy_errors

from aiorwlock_remote._util.tls import certificate_not_trusted
from aiorwlock_remote.backends.mariadb.options import EXAMPLE, SCHEMA
from aiorwlock_remote.cas import CasContention, RowLocked
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)

Failure = BackendError | ConfigurationError
Error: type[Exception] = asyncmy_errors.MySQLError

DUPLICATE = 1062
"""Code of an insert whose row exists already."""
CHANGED = 1020
"""Code for a row newer than the transaction's snapshot: MariaDB 11.6.2 and later."""

# The driver has lost the connection, or the server has ended it: the outcome of the
# request is not known.
_CLIENT = range(2000, 3000)
_GONE = {1053, 1152, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1927}
_CONTENTION = {1213, CHANGED}
_LOCKED = {1205, 1969}  # the time to wait for a row was over
_LACKING = (
    ({1044, 1045, 1049, 1698, 1130, 1862, 1820}, EXAMPLE),
    ({1146, 1054, 1364, 1932, 1267, 1271, 1048, 1452, 4025}, SCHEMA),
    (
        {1142, 1143, 1227},
        "GRANT SELECT, INSERT, UPDATE, DELETE ON mutex_locks, and on doormans",
    ),
    ({1665}, "SET GLOBAL binlog_format = 'MIXED'"),
)
"""Codes for what the server or the user lacks, each with the hint for the user."""
_TOO_LONG = (
    "the column is shorter than `rwlock schema mariadb` makes it: widen it by ALTER "
    "TABLE … MODIFY; if it is resource_type, a shorter name for the resource fits, too"
)
_UNUSABLE = (
    ({1104}, "SET SESSION sql_big_selects = ON"),
    ({1175}, "SET SESSION sql_safe_updates = OFF"),
    ({1406}, _TOO_LONG),
    ({1366, 1300, 1264, 1153}, "another name for the resource"),
)
"""Codes of a bad request or session, each with what to change."""
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
    return not code or code in _CLIENT or code in _GONE


def message_of(exc: BaseException) -> str:
    """Return the message of an error in one line."""
    text = exc.args[1] if isinstance(exc, Error) and len(exc.args) > 1 else exc
    return " ".join(str(text).split()) or type(exc).__name__


def from_driver(exc: BaseException, where: str) -> Failure:
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
    for codes, hint in _LACKING:
        if code in codes:
            return Unsupported(what=what, hint=hint, nothing_done=True)
    for codes, hint in _UNUSABLE:
        if code in codes:
            return ConfigurationError(what=what, hint=hint)
    return BackendUnavailable(what=what, nothing_done=True)


def from_connecting(exc: BaseException, where: str) -> Failure:
    """Convert an exception of connecting to this library's; ``where``: the server."""
    cause: BaseException | None = exc
    while cause is not None:  # asyncmy wraps what TLS raises
        if isinstance(cause, ssl.SSLCertVerificationError):
            return certificate_not_trusted(where, cause.verify_message)
        cause = cause.__cause__ or cause.__context__
    error = from_driver(exc, where)
    if isinstance(error, BackendError):
        error.nothing_done = True
    return error
