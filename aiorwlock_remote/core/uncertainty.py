"""Whether a request that failed may have been carried out.

The rule of all stores, locks and recipes: a failed request may have been carried out,
in part or whole, unless its error proves the contrary. Proof is ``nothing_done`` of a
``BackendError``, set where the driver's error is mapped, or another type of
``LockError``: a store raises those (``ConfigurationError``, ``Closed``) before it
changes anything. A request that may have been carried out is withdrawn.
"""

from __future__ import annotations

from copy import copy

from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.errors import BackendError, BackendUnavailable, LockError


def is_uncertain(error: BaseException | None) -> bool:
    """Return True if a request with this error may have been done; False for None."""
    if error is None:
        return False
    if isinstance(error, BackendError):
        return not error.nothing_done
    # Any other exception, such as a driver's that was not mapped, proves nothing.
    return not isinstance(error, LockError | IllegalCommand)


def may_be_repeated(error: BaseException) -> bool:
    """Return True if the error says that nothing was done and a retry may succeed."""
    return (
        isinstance(error, BackendUnavailable)
        and error.nothing_done
        and error.replicas is None
    )


def after_change(error: BackendError) -> BackendUnavailable:
    """Return a like error that does not say ``nothing_done``.

    For a request in parts, if a part before the failed one has changed the store.
    """
    doubtful = BackendUnavailable(
        what=error.what, hint=error.hint, retry_after=error.retry_after
    )
    doubtful.__cause__ = error
    return doubtful


def without_proof(error: BaseException) -> BaseException:
    """Return a like error that does not say ``nothing_done``.

    For a repeated request, if an earlier attempt may have been carried out.
    """
    if is_uncertain(error):
        return error
    # The error itself stays as it is: other tasks may raise it, too.
    doubtful: BackendError = BackendUnavailable(what=str(error))
    if isinstance(error, BackendError):
        doubtful = copy(error)
        doubtful.nothing_done = False
    doubtful.__cause__ = error
    return doubtful
