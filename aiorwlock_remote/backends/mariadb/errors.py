"""What MariaDB and asyncmy say → what we raise. The one place for that, by code.

=====================================  ====================  ================
code, or what asyncmy raises           we raise              carried out?
=====================================  ====================  ================
2006 2013 2014 2027 2055 (lost)        BackendUnavailable    perhaps
1053 1152…1161 1184 1927 (shut down)   BackendUnavailable    perhaps
any other of the driver's, OSError     BackendUnavailable    perhaps
1213 1020 (deadlock, changed since)    GaveUp                no
1205 1969 (waited too long)            RowLocked             no
1317 (interrupted by somebody)         BackendUnavailable    no
1290 1792 1836 (read-only: a replica)  BackendUnavailable    no
1040 1203 1047 (full, not ready)       BackendUnavailable    no
1044 1045 1049 1698 1130 1862 1820     Unsupported           no: log in
1146 1054 1364 1932                    Unsupported           no: tables
1142 1143 1227                         Unsupported           no: grants
1665 (binlog_format)                   Unsupported           no
1267 1271 (collations)                 Unsupported           no: tables
1048 1452 4025 (constraints)           Unsupported           no: tables
1406 1366 1300 1264 1153               ConfigurationError    no: a bad name
1104 1175 (big joins, safe updates)    ConfigurationError    no: the session
any other of the server's              BackendUnavailable    no
a certificate                          Unsupported           no: not trusted
=====================================  ====================  ================

A statement that fails has changed nothing, unless what is told is about the connection.
The transaction it stood in is rolled back by whoever asked.
"""

from __future__ import annotations

import ssl

from aiorwlock_remote._util.tls import certificate_not_trusted
from aiorwlock_remote.backends.mariadb.driver import Error
from aiorwlock_remote.backends.mariadb.options import EXAMPLE, SCHEMA
from aiorwlock_remote.cas import CasContention, RowLocked
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)

Failure = BackendError | ConfigurationError

DUPLICATE = 1062
"""A row is there already."""
CHANGED = 1020
"""A row is newer than the snapshot of the transaction: MariaDB 11.6.2 and later."""

_CLIENT = range(2000, 3000)
_GONE = {1053, 1152, 1156, 1157, 1158, 1159, 1160, 1161, 1184, 1927}
_MET = {1213, CHANGED}
_LOCKED = {1205, 1969}
_LOGIN = {1044, 1045, 1049, 1698, 1130, 1862, 1820}
_TABLES = {1146, 1054, 1364, 1932, 1267, 1271, 1048, 1452, 4025}
_GRANTS = {1142, 1143, 1227}
_LONG = 1406
_TOO_LONG = (
    "the column is shorter than `rwlock schema mariadb` makes it: widen it by ALTER "
    "TABLE … MODIFY; if it is resource_type, a shorter name for the resource fits, too"
)
_NAMES = {1366, 1300, 1264, 1153}
_BINLOG = 1665
_SESSION = {
    1104: "SET SESSION sql_big_selects = ON",
    1175: "SET SESSION sql_safe_updates = OFF",
}


def code_of(exc: BaseException) -> int:
    """The server's or the driver's number; 0: none."""
    code = exc.args[0] if isinstance(exc, Error) and exc.args else 0
    return code if isinstance(code, int) else 0


def is_contention(exc: BaseException) -> bool:
    """Whether another transaction came first, or had a row locked for too long."""
    return code_of(exc) in _MET


def is_broken(exc: BaseException) -> bool:
    """Whether the connection is not to be used again."""
    code = code_of(exc)
    return not code or code in _CLIENT or code in _GONE


def from_driver(exc: BaseException, where: str) -> Failure:
    """The error of ours for what the driver raised for one request."""
    if isinstance(exc, BackendError | ConfigurationError):
        return exc
    code = code_of(exc)
    what = f"{where}: {said(exc)}"
    if is_broken(exc):
        return BackendUnavailable(what=what)
    if code in _MET:
        return CasContention(what=what, nothing_done=True)
    if code in _LOCKED:
        return RowLocked(what=what, nothing_done=True)
    if code in _LOGIN:
        return _refused(what, EXAMPLE)
    if code in _TABLES:
        return _refused(what, SCHEMA)
    if code in _GRANTS:
        grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON mutex_locks, and on doormans"
        return _refused(what, grant)
    if code == _BINLOG:
        return _refused(what, "SET GLOBAL binlog_format = 'MIXED'")
    if code in _SESSION:
        return ConfigurationError(what=what, hint=_SESSION[code])
    if code == _LONG:
        return ConfigurationError(what=what, hint=_TOO_LONG)
    if code in _NAMES:
        return ConfigurationError(what=what, hint="another name for the resource")
    return BackendUnavailable(what=what, nothing_done=True)


def said(exc: BaseException) -> str:
    """Its message."""
    text = exc.args[1] if isinstance(exc, Error) and len(exc.args) > 1 else exc
    return " ".join(str(text).split()) or type(exc).__name__


def from_connecting(exc: BaseException, where: str) -> Failure:
    """The same for what happened before anything was asked."""
    error = from_driver(exc, where)
    bad = _certificate(exc)
    if bad is not None:
        return certificate_not_trusted(where, bad.verify_message)
    if isinstance(error, BackendError):
        error.nothing_done = True
    return error


def _certificate(exc: BaseException) -> ssl.SSLCertVerificationError | None:
    beneath: BaseException | None = exc
    while beneath is not None:
        if isinstance(beneath, ssl.SSLCertVerificationError):
            return beneath
        beneath = beneath.__cause__ or beneath.__context__
    return None


def _refused(what: str, hint: str) -> Unsupported:
    """The server's own refusal of a statement, which has changed nothing."""
    return Unsupported(what=what, hint=hint, nothing_done=True)
