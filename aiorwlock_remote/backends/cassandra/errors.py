"""Maps errors of Cassandra and its driver to the errors of this library.

====================================  ====================  ================
the driver raises                     we raise              carried out?
====================================  ====================  ================
Unavailable                           BackendUnavailable    no
OverloadedErrorMessage                BackendUnavailable    no
... of too many hints                 BackendUnavailable    perhaps, or later
IsBootstrappingErrorMessage           BackendUnavailable    no
NoHostAvailable                       BackendUnavailable    no: nothing sent
UnresolvableContactPoints             BackendUnavailable    no: nothing sent
WriteTimeout ReadTimeout              BackendUnavailable    perhaps, or later
... after contention retries          CasContention         perhaps, or later
WriteFailure ReadFailure              BackendUnavailable    perhaps
OperationTimedOut                     BackendUnavailable    perhaps, or later
ConnectionShutdown and subclasses     BackendUnavailable    perhaps, or later
ErrorMessage 0x1700                   BackendUnavailable    perhaps
ServerError and any other             BackendUnavailable    perhaps
InvalidRequest SyntaxException        Unsupported           no
Unauthorized                          Unsupported           no
AuthenticationFailed BadCredentials   Unsupported           no
ValueError: legacy parameters         ConfigurationError    no
====================================  ====================  ================

"Or later": a coordinator that was paused carries out what is in its socket when it
resumes. A SERIAL read before does not reveal it (``docs/stores/cassandra.md``).

If a coordinator gives up because other Paxos rounds outbid its own, a retry is useful;
only the text of the error says so, and for a SERIAL read not even that. If replicas do
not answer, a retry is useless, and the caller must get the error in time.

A coordinator checks its number of hints again when it commits an agreed change, so "too
many hints" does not prove that nothing was done.

0x1700 is CAS_WRITE_UNKNOWN, which the driver does not know: it raises a bare
``ErrorMessage``, which is not even a ``DriverException``.
"""

from __future__ import annotations

import re
from typing import Any

from aiorwlock_remote.backends.cassandra import driver
from aiorwlock_remote.cas import CasContention
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, Unsupported

Failure = BackendUnavailable | Unsupported | ConfigurationError

SCHEMA_HINT = "rwlock schema cassandra prints the table"

_UNTRUSTED = re.compile(r"certificate verify failed: (.*?)\.? \(_ssl")
_REFUSED = (driver.Unavailable, driver.Overloaded, driver.IsBootstrapping)
_CONNECTION = re.compile(r"Connection <.*\)>")
_LOGIN = (driver.AuthenticationFailed, driver.BadCredentials)
_UNSUPPORTED: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (_LOGIN, "cassandra://user:password@host/keyspace"),
    (
        (driver.Unauthorized,),
        "GRANT SELECT ON … and GRANT MODIFY ON the table to that role",
    ),
    ((driver.InvalidRequest, driver.SyntaxException), SCHEMA_HINT),
)
_HINTS = "in flight hints"
_OUTBID = re.compile(r"after [1-9]\d* contention retries")
_SERIAL = (driver.ConsistencyLevel.SERIAL, driver.ConsistencyLevel.LOCAL_SERIAL)


def from_driver(exc: BaseException, where: str) -> Failure:
    """Return this library's error for an exception that the driver raised.

    ``where`` names the cluster in the message. If ``exc`` is an error of this library
    already, it is returned unchanged.
    """
    if isinstance(exc, BackendUnavailable | Unsupported | ConfigurationError):
        return exc
    if isinstance(exc, _REFUSED):
        return _unavailable(exc, where, nothing_done=_HINTS not in str(exc))
    if isinstance(exc, driver.NoHostAvailable):
        return from_no_host_available(exc, where)
    if isinstance(exc, driver.UnresolvableContactPoints):
        hint = "no contact point's name can be resolved"
        return BackendUnavailable(what=where, hint=hint, nothing_done=True)
    for kinds, hint in _UNSUPPORTED:
        if isinstance(exc, kinds):
            what = f"{where}: {message_of(exc)}"
            return Unsupported(what=what, hint=hint, nothing_done=True)
    if isinstance(exc, ValueError) and "legacy parameters" in str(exc):
        return ConfigurationError(
            what="the session was switched to legacy settings after connect()",
            hint="set default_timeout, row_factory and the like before connect()",
        )
    if _gave_up(exc):
        return CasContention(
            what=f"{where}: {type(exc).__name__}: {message_of(exc)}",
            hint="check that the clocks of the nodes are in step",
        )
    return _unavailable(exc, where)


def _gave_up(exc: BaseException) -> bool:
    # The text of a SERIAL read's timeout does not tell why, so each may be contention.
    if isinstance(exc, driver.ReadTimeout):
        return getattr(exc, "consistency", None) in _SERIAL
    return isinstance(exc, driver.WriteTimeout) and bool(_OUTBID.search(str(exc)))


def from_no_host_available(exc: BaseException, where: str) -> Failure:
    """Return this library's error for ``NoHostAvailable``; ``where`` names the cluster.

    If a host refused the login or has an untrusted certificate, the error says so.
    Nothing was sent: as the retry policy is Fallthrough, a request that was sent never
    ends with ``NoHostAvailable``.
    """
    errors: Any = getattr(exc, "errors", None)
    found: list[BaseException] = []
    if hasattr(errors, "values"):  # otherwise it names hosts that are too far away
        found = list(errors.values())
    for error in found:
        if isinstance(error, _LOGIN):
            return from_driver(error, where)
        # The driver replaces the exception of `ssl`, and keeps only its text.
        if untrusted := _UNTRUSTED.search(str(error)):
            return Unsupported(
                what=f"{where}: its certificate is not trusted: {untrusted[1]}",
                hint="ca_file=… names the authority; verify=no trusts any certificate",
                nothing_done=True,
            )
    why = "; ".join(sorted({message_of(error) for error in found}))
    return BackendUnavailable(
        what=f"{where}: no node can be reached ({why or 'all are down'})",
        nothing_done=True,
    )


def message_of(exc: BaseException) -> str:
    """Return the message of an error of the server or the driver, in one line."""
    if isinstance(exc, driver.ErrorMessage):
        code: int = getattr(exc, "code", 0) or 0
        text = f"{getattr(exc, 'message', '')} (code 0x{code:04x})"
    else:
        # Without what the driver calls its connection, an object's ``repr``.
        text = _CONNECTION.sub("connection", str(exc)) or type(exc).__name__
    return " ".join(text.split())


def _unavailable(
    exc: BaseException, where: str, *, nothing_done: bool = False
) -> BackendUnavailable:
    return BackendUnavailable(
        what=f"{where}: {type(exc).__name__}: {message_of(exc)}",
        nothing_done=nothing_done,
    )
