"""Maps what the server and the network report to the errors of this library.

``_BY_WORD`` has the first words of error replies. What the server refused with one of
them was not carried out (``nothing_done``), unless the refusal came in the middle of a
script: then the reply ends with `` script: `` and its name, and what the script did
before stays. Of all other replies nothing is known but that a try may be repeated
(``BackendUnavailable``) or not (``BackendError``, ``Unsupported``, ``BadRecord``).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from aiorwlock_remote._util.tls import certificate_not_trusted
from aiorwlock_remote.core.codec import UPGRADE
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    LockError,
    Unsupported,
)

Refusal = BackendError | IllegalCommand
Failure = BackendError | ConfigurationError

_PERMISSION = "the user in the URL lacks a permission, or its password is wrong"
_NOT_IN_SCRIPTS = (
    "The user executing the script can't run",
    "ACL failure in script",  # Redis 7.2 and later
)
_NEEDS = "the documentation of the Redis store lists the rights a user needs"
_DAMAGED = (
    "another program, or a newer version of this library, wrote there: mend it, or "
    "delete the key once nobody holds the lock"
)
_NO_COMMAND = "Redis 7.0 or later is needed, and rename-command left alone"
_CLUSTER = "it is a node of a cluster: redis+cluster://"

_IN_A_SCRIPT = " script: "
"""Separates the error of a command inside a script from the script's name."""

_BY_WORD: dict[str, tuple[type[BackendError], str]] = {
    "LOADING": (BackendUnavailable, "it is starting"),
    "BUSY": (BackendUnavailable, "a script of another program runs for too long"),
    "TRYAGAIN": (BackendUnavailable, ""),
    "MASTERDOWN": (BackendUnavailable, "its primary is away"),
    "CLUSTERDOWN": (BackendUnavailable, ""),
    "READONLY": (BackendUnavailable, "it is a replica; use the primary"),
    "NOREPLICAS": (BackendUnavailable, "see min-replicas-to-write"),
    "OOM": (BackendError, "its maxmemory is used up"),
    "MISCONF": (BackendError, "it cannot save to its disk"),
    "UNKILLABLE": (BackendError, ""),
    "EXECABORT": (BackendError, ""),
    "NOSCRIPT": (BackendError, ""),
    "WRONGPASS": (Unsupported, "user or password in the URL is wrong"),
    "NOAUTH": (Unsupported, "it wants a password: redis://user:password@…"),
    "NOPERM": (Unsupported, _PERMISSION),
    "DENIED": (Unsupported, "it is in protected mode: set a password for it"),
    "NOPROTO": (Unsupported, "Redis 7.0 or later is needed"),
    "MOVED": (Unsupported, _CLUSTER),
    "ASK": (Unsupported, _CLUSTER),
    "CROSSSLOT": (Unsupported, _CLUSTER),
    "WRONGTYPE": (BadRecord, "another program uses a key of ours"),
    "BADRECORD": (BadRecord, ""),
}

# A user's client connects before this library takes over. What it raises then is mapped
# by the names of its class and its bases, so that neither library is imported.
_BY_CLASS: dict[str, tuple[type[BackendError], str]] = {
    "AuthenticationError": (Unsupported, "the client's user or password is wrong"),
    "AuthorizationError": (Unsupported, "the client's user lacks a permission"),
    "NoPermissionError": (Unsupported, "the client's user lacks a permission"),
    "InvalidResponse": (Unsupported, "it does not speak the Redis protocol"),
    "ResponseError": (BackendError, ""),
    "DataError": (BackendError, ""),
    "RedisError": (BackendUnavailable, ""),
    "ValkeyError": (BackendUnavailable, ""),
}


def from_reply(text: str, where: str) -> Refusal:
    """Return the exception for the error reply ``text`` of the server ``where``."""
    # The quoted arguments may be a password (test_arguments_are_never_repeated).
    text = text.partition(", with args beginning with")[0]
    refusal = _meaning(text, where)
    if isinstance(refusal, BackendError):
        known = type(refusal) is not BackendError or text.partition(" ")[0] in _BY_WORD
        # A command that fails inside a script ends the script there, and what the
        # script wrote before stays. The server appends the script's name to such a
        # reply: whatever it says, the step was perhaps carried out. Only what was
        # refused before the script began is ``nothing_done``
        # (test_what_was_refused_before_a_script_began_did_nothing).
        refusal.nothing_done = known and _IN_A_SCRIPT not in text
    return refusal


def _meaning(text: str, where: str) -> Refusal:
    word, _, rest = text.partition(" ")
    if word == "ILLEGAL":
        return IllegalCommand(rest)
    if word == "BADRECORD":
        what = rest.partition(_IN_A_SCRIPT)[0]
        hint = UPGRADE if what.endswith("unknown version") else _DAMAGED
        return BadRecord(what=what, hint=hint)
    if word in _BY_WORD:
        kind, hint = _BY_WORD[word]
        return kind(what=f"{where}: {text}", hint=hint)
    if rest.lower().startswith(("unknown command", "unknown redis command")):
        return Unsupported(
            what=f"{where}: {rest.partition(_IN_A_SCRIPT)[0]}", hint=_NO_COMMAND
        )
    if rest.startswith(_NOT_IN_SCRIPTS):
        return Unsupported(
            what=f"{where}: {rest.rpartition(_IN_A_SCRIPT)[0] or rest}", hint=_NEEDS
        )
    if rest.startswith("max number of clients"):
        return BackendUnavailable(what=f"{where}: {rest}")
    return BackendError(what=f"{where}: {text}")


def too_few_replicas(
    where: str, count: int, needed: int, seconds: float
) -> BackendUnavailable | None:
    """Return the error of a grant or a renewal that ``count`` replicas have after so
    many seconds; None if they are as many as needed.
    """
    if count >= needed:
        return None
    return BackendUnavailable(
        what=f"{where}: {count} of {needed} replicas acknowledged within {seconds:g} s",
        hint="the grant is given back, or the renewal does not count",
        replicas=count,
    )


def from_failure(exc: BaseException | None, where: str) -> BackendError:
    """Return the exception for a failed connection to the server ``where``.

    ``exc`` is the transport's error; None: the server closed the connection.
    """
    if exc is None or isinstance(exc, EOFError):
        return BackendUnavailable(what=f"{where}: the server closed the connection")
    if isinstance(exc, BackendError):
        return exc
    if isinstance(exc, TimeoutError):
        return BackendUnavailable(what=f"{where}: no answer in time")
    # trio raises TLS errors as the cause of its own.
    cause = exc if isinstance(exc, ssl.SSLError) else exc.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return certificate_not_trusted(where, cause.verify_message)
    if isinstance(cause, ssl.SSLError):
        reason = cause.reason or "failed"
        plain = reason == "WRONG_VERSION_NUMBER"
        return BackendUnavailable(
            what=f"{where}: TLS: {reason.lower().replace('_', ' ')}",
            hint="it may not speak TLS: redis://" if plain else "",
        )
    said = str(exc) or type(exc).__name__
    return BackendUnavailable(what=f"{where}: {said}")


def from_decoding(exc: Exception, name: str) -> Exception:
    """Return what to raise if decoding the reply to command ``name`` raised ``exc``."""
    shapeless = isinstance(exc, TypeError | ValueError | LookupError | AttributeError)
    if isinstance(exc, LockError) or not shapeless:
        return exc
    error = BackendError(what=f"the server's answer to {name} cannot be read")
    error.__cause__ = exc
    return error


def from_client(exc: Exception, where: str) -> BackendError:
    """Return the exception to raise for ``exc``, with which a user's client failed.

    An error of neither the client library nor the network comes from the user's own
    code (a credential provider, say) and counts as temporary: ``BackendUnavailable``.
    """
    if isinstance(exc, BackendError):
        return exc
    behind = exc.__cause__ or exc.__context__
    for failure in (exc, behind):
        if isinstance(failure, ssl.SSLError):
            found = from_failure(failure, where)
            return type(found)(what=found.what, hint="see ssl_… of the client")
        if isinstance(failure, TimeoutError):
            return from_failure(failure, where)
    said = str(exc) or type(exc).__name__
    for kind in type(exc).__mro__:
        known = _BY_CLASS.get(kind.__name__)
        if known is not None:
            made, hint = known
            return made(what=f"{where}: {said}", hint=hint)
    return BackendUnavailable(what=f"{where}: {said}")


def lasting(failures: Sequence[Failure]) -> Failure | None:
    """Return the first failure that another attempt cannot cure, None if there is none.

    ``Unsupported`` goes before ``ConfigurationError``; other errors are temporary.
    """
    for kind in (Unsupported, ConfigurationError):
        for failure in failures:
            if isinstance(failure, kind):
                return failure
    return None


def not_sent(where: str, why: str, *, for_good: bool = True) -> BackendUnavailable:
    """Return the error of a call that was not sent to ``where`` because of ``why``.

    ``for_good=False``: the call may still be sent.
    """
    said = "not sent" if for_good else "not sent yet"
    return BackendUnavailable(what=f"{where}: {why}; {said}", nothing_done=for_good)


def not_redis(where: str) -> Unsupported:
    """Return the error for a server ``where`` that speaks another protocol."""
    return Unsupported(what=f"{where}: it does not speak the Redis protocol")
