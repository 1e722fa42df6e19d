"""What Cassandra and its driver say → what we raise. The one place for that.

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
... of one outbid again and again     GaveUp                perhaps, or later
WriteFailure ReadFailure              BackendUnavailable    perhaps
OperationTimedOut                     BackendUnavailable    perhaps, or later
ConnectionShutdown and its kin        BackendUnavailable    perhaps, or later
ErrorMessage 0x1700                   BackendUnavailable    perhaps
ServerError and any other             BackendUnavailable    perhaps
InvalidRequest SyntaxException        Unsupported           no
Unauthorized                          Unsupported           no
AuthenticationFailed BadCredentials   Unsupported           no
ValueError: legacy parameters         ConfigurationError    no
====================================  ====================  ================

"Or later": a paused coordinator runs what lies in its socket when it goes on, however
long that takes. A SERIAL read does not tell (``docs/stores/cassandra.md``).

A coordinator whose ballots others outbid until it gives up says so in its text only,
and of a SERIAL read nothing: such a one is worth another try. Where replicas do not
answer, it is not, and whoever asks is to be told in time.

A coordinator counts its hints once more when it commits what was agreed on already.

0x1700 is CAS_WRITE_UNKNOWN, which the driver does not know: it comes as a bare
``ErrorMessage``, which is not even a ``DriverException``.
"""

from __future__ import annotations

import re
from typing import Any

from aiorwlock_remote.backends.cassandra.driver import (
    AuthenticationFailed,
    BadCredentials,
    ConsistencyLevel,
    ErrorMessage,
    InvalidRequest,
    IsBootstrapping,
    NoHostAvailable,
    Overloaded,
    ReadTimeout,
    SyntaxException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteTimeout,
)
from aiorwlock_remote.cas import CasContention
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, Unsupported

Failure = BackendUnavailable | Unsupported | ConfigurationError

SCHEMA_HINT = "rwlock schema cassandra prints the table"

_UNTRUSTED = re.compile(r"certificate verify failed: (.*?)\.? \(_ssl")
_REFUSED = (Unavailable, Overloaded, IsBootstrapping)
_LOGIN = (AuthenticationFailed, BadCredentials)
_HINTS = "in flight hints"
_OUTBID = re.compile(r"after [1-9]\d* contention retries")
_SERIAL = (ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL)


def from_driver(exc: BaseException, where: str) -> Failure:
    """The error of ours for what the driver raised for one request."""
    if isinstance(exc, BackendUnavailable | Unsupported | ConfigurationError):
        return exc
    if isinstance(exc, _REFUSED):
        return _unavailable(exc, where, nothing_done=_HINTS not in str(exc))
    if isinstance(exc, NoHostAvailable):
        return from_no_host_available(exc, where)
    if isinstance(exc, UnresolvableContactPoints):
        hint = "no contact point's name can be resolved"
        return BackendUnavailable(what=where, hint=hint, nothing_done=True)
    if isinstance(exc, _LOGIN):
        return Unsupported(
            what=f"{where}: {message_of(exc)}",
            hint="cassandra://user:password@host/keyspace",
            nothing_done=True,
        )
    if isinstance(exc, Unauthorized):
        return Unsupported(
            what=f"{where}: {message_of(exc)}",
            hint="GRANT SELECT ON … and GRANT MODIFY ON the table to that role",
            nothing_done=True,
        )
    if isinstance(exc, (InvalidRequest, SyntaxException)):
        what = f"{where}: {message_of(exc)}"
        return Unsupported(what=what, hint=SCHEMA_HINT, nothing_done=True)
    if isinstance(exc, ValueError) and "legacy parameters" in str(exc):
        return ConfigurationError(
            what="the session was switched to legacy settings after connect()",
            hint="set default_timeout, row_factory and the like before connect()",
        )
    if _gave_up(exc):
        return CasContention(
            what=f"{where}: {type(exc).__name__}: {message_of(exc)}",
            hint="are the clocks of the nodes in step?",
        )
    return _unavailable(exc, where)


def _gave_up(exc: BaseException) -> bool:
    if isinstance(exc, ReadTimeout):
        return getattr(exc, "consistency", None) in _SERIAL
    return isinstance(exc, WriteTimeout) and bool(_OUTBID.search(str(exc)))


def from_no_host_available(exc: BaseException, where: str) -> Failure:
    """No host took the request; while connecting, one of them may say why.

    With Fallthrough as retry policy, what was sent never ends here.
    """
    errors: Any = getattr(exc, "errors", None)
    found: list[BaseException] = []
    if hasattr(errors, "values"):  # else the names of hosts that are too far away
        found = list(errors.values())
    for error in found:
        if isinstance(error, _LOGIN):
            return from_driver(error, where)
        # The driver makes another error of the one of ssl; only the text stays.
        if untrusted := _UNTRUSTED.search(str(error)):
            return Unsupported(
                what=f"{where}: its certificate is not trusted: {untrusted[1]}",
                hint="ca_file=… names who signed it; verify=no trusts anybody",
                nothing_done=True,
            )
    why = "; ".join(sorted({message_of(error) for error in found}))
    return BackendUnavailable(
        what=f"{where}: no node can be reached ({why or 'all are down'})",
        nothing_done=True,
    )


def message_of(exc: BaseException) -> str:
    """In one line, as the server or the driver says it."""
    if isinstance(exc, ErrorMessage):
        code: int = getattr(exc, "code", 0) or 0
        text = f"{getattr(exc, 'message', '')} (code 0x{code:04x})"
    else:
        text = str(exc) or type(exc).__name__
    return " ".join(text.split())


def _unavailable(
    exc: BaseException, where: str, *, nothing_done: bool = False
) -> BackendUnavailable:
    return BackendUnavailable(
        what=f"{where}: {type(exc).__name__}: {message_of(exc)}",
        nothing_done=nothing_done,
    )
