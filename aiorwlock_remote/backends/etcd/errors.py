"""Maps errors of etcd and of the connection to the errors of this library.

==================================================  ====================  ============
the server answers                                  we raise              carried out?
==================================================  ====================  ============
too many requests (ResourceExhausted)               BackendUnavailable    no
database space exceeded (ResourceExhausted)         BackendUnavailable    perhaps
any other ResourceExhausted: the message's size     Unsupported           no
request is too large, and any other InvalidArgument Unsupported           no
requested lease not found (NotFound)                CasContention         no
permission denied, login (PermissionDenied, …)      Unsupported           no
a method that the server lacks (Unimplemented)      Unsupported           no
any other: Unavailable, Unknown, Cancelled …        BackendUnavailable    perhaps
the connection is lost, or no answer in time        BackendUnavailable    perhaps
… before the call was sent; HTTP/2 says: refused    BackendUnavailable    no
==================================================  ====================  ============

A member whose quota is used up says so *after* it has carried out the transaction that
passed the limit, so that error proves nothing. Nor does "request timed out": the leader
may carry the transaction out later.
"""

from __future__ import annotations

import re
import ssl

from aiorwlock_remote.backends.etcd.grpc_connection import Disconnected, GrpcError
from aiorwlock_remote.cas import CasContention
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported

_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED = 3, 5, 7
_RESOURCE_EXHAUSTED, _FAILED_PRECONDITION, _UNIMPLEMENTED = 8, 9, 12
_UNAUTHENTICATED = 16
_LOGIN_HINT = "etcd://user:password@host; `rwlock doctor` examines the rights"
_SIZE_HINT = "too many holders or waiters of one lock? see --max-request-bytes"
_LOGIN = re.compile("authentication failed|user name|auth")
_RIGHTS = {_PERMISSION_DENIED, _FAILED_PRECONDITION, _UNAUTHENTICATED}


def is_stale_token(exc: GrpcError) -> bool:
    """Return True if the login has to be repeated: its token is not valid any more."""
    old = exc.code == _INVALID_ARGUMENT and "revision of auth store is old" in exc.text
    return old or (exc.code == _UNAUTHENTICATED and "invalid auth token" in exc.text)


def from_driver(exc: Exception, where: str) -> BackendError:
    """Return this library's error; ``where`` names the cluster.

    An error of this library is returned unchanged.
    """
    if isinstance(exc, BackendError):
        return exc
    if isinstance(exc, GrpcError):
        return _from_server(exc, where)
    if isinstance(exc, ssl.SSLCertVerificationError):
        return Unsupported(
            what=f"{where}: its certificate is not trusted: {exc.verify_message}",
            hint="ca_file=… names the authority that signed it; verify=no trusts any",
            nothing_done=True,
        )
    if isinstance(exc, TimeoutError):
        return BackendUnavailable(what=f"{where}: no answer in time")
    unsent = exc.unsent if isinstance(exc, Disconnected) else isinstance(exc, OSError)
    return BackendUnavailable(
        what=f"{where}: {str(exc) or type(exc).__name__}", nothing_done=unsent
    )


def _from_server(exc: GrpcError, where: str) -> BackendError:
    what = f"{where}: {exc.text.removeprefix('etcdserver: ')}"
    if exc.code == _RESOURCE_EXHAUSTED and "too many requests" in exc.text:
        return BackendUnavailable(what=what, nothing_done=True)
    if exc.code == _RESOURCE_EXHAUSTED and "space exceeded" in exc.text:
        return BackendUnavailable(
            what=what, hint="compact, defragment, and disarm the alarm"
        )
    if exc.code in {_RESOURCE_EXHAUSTED, _INVALID_ARGUMENT}:
        hint = _LOGIN_HINT if _LOGIN.search(exc.text) else _SIZE_HINT
        return Unsupported(what=what, hint=hint, nothing_done=True)
    if exc.code == _NOT_FOUND:
        return CasContention(what=what, nothing_done=True)
    if exc.code in _RIGHTS:
        hint = _LOGIN_HINT
        return Unsupported(what=what, hint=hint, nothing_done=True, lacks="rights")
    if exc.code == _UNIMPLEMENTED:
        hint = "is it etcd 3.4 or later?"
        return Unsupported(what=what, hint=hint, nothing_done=True)
    return BackendUnavailable(what=what)
