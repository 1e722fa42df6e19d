"""Maps what Oracle and python-oracledb raise to this library's errors, by code.

================================  ====================  ================
code                              we raise              carried out?
================================  ====================  ================
ORA-00028 00031 01012 03113       BackendUnavailable    perhaps
ORA-03114 03135 12537 12570       BackendUnavailable    perhaps
DPY-4011 (lost), DPY-1001         BackendUnavailable    perhaps
DPY-4024 (call timeout)           BackendUnavailable    perhaps, or later
ORA-01013 (of this call or, late  BackendUnavailable    perhaps
… of one before)
ORA-00060 08177 (met another)     CasContention         no
ORA-00054 30006 (waited too long) RowLocked             no
ORA-01403 (a doorman vanished)    BackendUnavailable    no
ORA-01033 01034 01089 01090       BackendUnavailable    no
ORA-16000 16456 (read-only)       BackendUnavailable    no
ORA-01536 01653 … (no room)       BackendUnavailable    no
ORA-12514 12505 12521 DPY-6001    Unsupported           no: no such service
DPY-6003 (no such SID)            Unsupported           no
… later, see ``from_connecting``    BackendUnavailable    no
ORA-01017 28000 28001 01045       Unsupported           no: log in
ORA-00942 00904 06550 01031       Unsupported           no: tables, grants
DPY-6006 (and what ssl refuses)   Unsupported           no: its certificate
ORA-00980 01720 06564             Unsupported           no
ORA-12899 01461 01438             ConfigurationError    no: too long a name
ORA-06502 22835                   BadRecord             no
DPY-3001 3010                     see ``from_driver``
any other                         BackendUnavailable    perhaps
any, before there is a connection see above             no
================================  ====================  ================

A statement that fails with ORA-… was not carried out, unless the error is about the
connection or a call that was interrupted.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from functools import partial

import oracledb

from aiorwlock_remote._util.tls import certificate_not_trusted
from aiorwlock_remote.backends.oracle.options import EXAMPLE, SCHEMA
from aiorwlock_remote.cas import CasContention, RowLocked
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    Unsupported,
)

Failure = BackendError | ConfigurationError
Error = oracledb.Error

_LOCKED = {"ORA-00054", "ORA-30006"}
_BUSY = (1403,)
_AWAY = 18, 20, 1033, 1034, 1089, 1090, 1109, 12516, 12518, 12520, 12541
_READ_ONLY = 16000, 16456
_FULL = 1536, 1653, 1654, 1691, 4031, 30036
_NOT_NOW = {f"ORA-{code:05}" for code in (*_BUSY, *_AWAY, *_READ_ONLY, *_FULL)}
_CONTENTION = {"ORA-00060", "ORA-08177"}
"""Codes of a statement undone because another transaction came first."""
_LOGIN = {
    "ORA-01017": EXAMPLE,
    "ORA-01005": "a password is needed",
    "ORA-01045": "GRANT CREATE SESSION TO that user",
    "ORA-28000": "the account is locked",
    "ORA-28001": "the password has expired",
}
_NO_SERVICE = ("ORA-12514", "ORA-12505", "ORA-12521", "DPY-6001", "DPY-6003")
_SAID: dict[tuple[str, ...], tuple[Callable[..., Failure], str]] = {
    _NO_SERVICE: (
        partial(Unsupported, nothing_done=True),
        "the service as `lsnrctl services` shows it",
    ),
    ("ORA-00942", "ORA-00904", "ORA-06550", "ORA-00980", "ORA-06564"): (
        partial(Unsupported, nothing_done=True, lacks="tables"),
        SCHEMA,
    ),
    ("ORA-01031", "ORA-01720", "ORA-01950", "ORA-41900"): (
        partial(Unsupported, nothing_done=True, lacks="rights"),
        "GRANT SELECT, INSERT, UPDATE, DELETE ON both tables TO that user",
    ),
    ("ORA-12899", "ORA-01461", "ORA-01438"): (
        partial(ConfigurationError, refused="value"),
        "a shorter name or ticket, or a wider column",
    ),
    ("ORA-06502", "ORA-22835"): (
        partial(BadRecord, nothing_done=True),
        "rwlock break",
    ),
}
"""Codes whose errors contain the server's message, each with the hint for the user."""
_BY_CODE = {code: made for codes, made in _SAID.items() for code in codes}
_THICK = {"DPY-3001", "DPY-3014", "DPY-2053"}
_TOO_OLD = {"DPY-3010", "DPY-3015"}
_ANOTHER_NAME = "DPY-6006"

EXISTS_ALREADY = "ORA-00955"
_WRAPPED = "DPY-6005"
"""Code of a failed connection, whose cause has the reason."""


def from_driver(exc: BaseException, where: str) -> Failure:
    """Return this library's error for a request's exception; ``where``: the server."""
    if isinstance(exc, BackendError | ConfigurationError):
        return exc
    code = code_of(exc)
    said = f"{where}: {_line(exc)}"
    if code in _CONTENTION:
        return CasContention(what=said, nothing_done=True)
    if code in _LOCKED:
        return RowLocked(what=said, nothing_done=True)
    if code in _NOT_NOW:
        return BackendUnavailable(what=said, nothing_done=True)
    if code in _LOGIN:
        what = f"{where}: {code}"
        return Unsupported(what=what, hint=_LOGIN[code], nothing_done=True)
    if code in _BY_CODE:
        make, hint = _BY_CODE[code]
        return make(what=said, hint=hint)
    if untrusted := _untrusted(exc, code):
        return certificate_not_trusted(where, untrusted)
    if code in _THICK:
        return thick_mode(where)
    if code in _TOO_OLD:
        return too_old(where, "older than 12.1")
    return BackendUnavailable(what=said)


def is_contention(exc: BaseException) -> bool:
    """Return True if a conflict with another transaction undid the statement."""
    return code_of(exc) in _CONTENTION


def from_connecting(exc: BaseException, where: str, *, known: bool) -> Failure:
    """Return this library's error for an exception of connecting to ``where``.

    ``known``: whether this process has reached the service before. If so, and the
    listener does not know the service now, the database probably restarts or fails
    over: the result is ``BackendUnavailable``, so that callers try again.
    """
    error = from_driver(exc, where)
    if known and code_of(exc) in _NO_SERVICE:
        return BackendUnavailable(what=error.what, hint=error.hint, nothing_done=True)
    if isinstance(error, BackendError):
        error.nothing_done = True
    return error


def thick_mode(where: str) -> Unsupported:
    """Return the error for python-oracledb in thick mode, which has no asyncio."""
    return Unsupported(
        what=f"{where}: python-oracledb is in thick mode, which has no asyncio",
        hint="leave out oracledb.init_oracle_client() in this process",
        nothing_done=True,
    )


def too_old(where: str, version: str) -> Unsupported:
    """Return the error for a server whose version is not supported."""
    return Unsupported(
        what=f"{where} is Oracle Database {version}",
        hint="12.2 or later is needed",
        nothing_done=True,
    )


def code_of(exc: BaseException) -> str:
    """Return the code of an error or of its cause, such as ``ORA-00060``, or ""."""
    code = ""
    for error in _causes(exc):
        code = _own_code(error) or code
        if code and code != _WRAPPED:
            return code
    return code


def _untrusted(exc: BaseException, code: str) -> str:
    if code == _ANOTHER_NAME:
        return "it is for another name"
    for error in _causes(exc):
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
    return ""


def _own_code(error: BaseException) -> str:
    if isinstance(error, Error) and error.args:
        full: str = getattr(error.args[0], "full_code", None) or ""
        return full
    return ""


def _causes(exc: BaseException) -> Iterator[BaseException]:
    error: BaseException | None = exc
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _line(exc: BaseException) -> str:
    text = str(exc).partition("\nHelp:")[0]
    return " ".join(text.split()) or type(exc).__name__
