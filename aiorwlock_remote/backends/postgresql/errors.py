"""What PostgreSQL and asyncpg say → what we raise. The one place for that, by code.

==================================  ====================  ================
SQLSTATE, or what asyncpg raises    we raise              carried out?
==================================  ====================  ================
08… 57P01 57P02 57P05 XX…           BackendUnavailable    perhaps
57014 (cancelled by somebody)       BackendUnavailable    no
57P03 53… (starting, full)          BackendUnavailable    no
40001 40P01 (met another one)       GaveUp                no
55P03 (waited too long)             BackendUnavailable    no
25006 (read-only: a standby)        BackendUnavailable    no
28… 3D000                           Unsupported           no: log in
23… 42P01 42703 3F000 42804 42883   Unsupported           no: tables
42501                               Unsupported           no: grants
26000 42P05 0A000 (of another one)  Unsupported           no: PgBouncer
0A000 55000 (a rule, a view)        Unsupported           no: tables
22001 (too long for a column)       ConfigurationError    no: name or column
22021 22P05 54000                   ConfigurationError    no: a bad name
25P02 (a transaction that failed)   ConfigurationError    no
any other of the server's           BackendUnavailable    no
InterfaceError, connection lost     BackendUnavailable    perhaps
TimeoutError                        BackendUnavailable    perhaps, or later
OSError                             BackendUnavailable    perhaps
SSLCertVerificationError            Unsupported           no
==================================  ====================  ================

A statement that fails has changed nothing, unless what is told is about the connection.
"""

from __future__ import annotations

from ssl import SSLCertVerificationError

from aiorwlock_remote.backends.postgresql.driver import PostgresError
from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.swapping import GaveUp
from aiorwlock_remote.tls import not_trusted

Failure = BackendError | ConfigurationError


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
_MET = {"40001", "40P01"}
"""Another transaction came first: only one of them could be carried out."""
REFUSED = {"22012"} | _MET
"""A step that is to begin again from what stands there. A division by zero: see
``statements.sql``."""


def code_of(exc: BaseException) -> str:
    """The SQLSTATE, or nothing."""
    return getattr(exc, "sqlstate", None) or ""


def said(exc: BaseException) -> str:
    """Its message; not the details, which show the user's rows."""
    text = exc.args[0] if isinstance(exc, PostgresError) and exc.args else exc
    return " ".join(str(text).split()) or type(exc).__name__


def of(exc: BaseException, where: str) -> Failure:
    """The error of ours for what the driver raised for one request."""
    if isinstance(exc, BackendError | ConfigurationError):
        return exc
    code = code_of(exc)
    what = f"{where}: {said(exc)}"
    if not code or code.startswith(_UNKNOWN):
        return BackendUnavailable(what=what)
    if code in _MET:
        return GaveUp(what=what, nothing_done=True)
    if code.startswith(_LOGIN):
        hint = "postgresql://user:password@host/database"
        return Unsupported(what=what, hint=hint)
    if code.startswith(_TABLES):
        return Unsupported(what=what, hint=SCHEMA)
    if code == "42501":
        grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON mutex_locks, doormans TO …"
        return Unsupported(what=what, hint=grant)
    if code in _REWRITTEN and "plan" not in what.lower():  # "cached plan must not …"
        return Unsupported(what=what, hint=_PLAIN)
    if code.startswith(_FORGOTTEN):
        return Unsupported(
            what=what, hint="behind PgBouncer in transaction mode: ?statement_cache=no"
        )
    if code == "22001":
        return ConfigurationError(what=what, hint=TOO_LONG)
    if code.startswith(_NAMES):
        return ConfigurationError(what=what, hint="another name for the resource")
    if code == "25P02":
        return ConfigurationError(what=what, hint="ROLLBACK comes first")
    return BackendUnavailable(what=what, nothing_done=True)


def of_connecting(exc: BaseException, where: str) -> Failure:
    """The same for what happened before anything was asked."""
    if isinstance(exc, SSLCertVerificationError):
        return not_trusted(where, exc.verify_message)
    error = of(exc, where)
    if isinstance(error, BackendUnavailable):
        return BackendUnavailable(what=error.what, hint=error.hint, nothing_done=True)
    return error


def spoilt(exc: BaseException) -> bool:
    """Whether the connection is not to be used again."""
    code = code_of(exc)
    return not isinstance(exc, PostgresError) or code.startswith(_UNKNOWN)
