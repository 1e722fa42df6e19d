"""Whether a request that failed may have been carried out."""

from __future__ import annotations

from aiorwlock_remote.errors import BackendError, BackendUnavailable


def in_doubt(error: BaseException | None) -> bool:
    """Nobody knows: its answer was lost."""
    return isinstance(error, BackendUnavailable) and not error.nothing_done


def after_change(error: BackendError) -> BackendUnavailable:
    """What failed after something else had been done: nobody knows what stands now."""
    doubtful = BackendUnavailable(
        what=error.what, hint=error.hint, retry_after=error.retry_after
    )
    doubtful.__cause__ = error
    return doubtful


def after_doubt(error: BaseException) -> BaseException:
    """What failed after something else that may have been done: not nothing was."""
    if not (isinstance(error, BackendUnavailable) and error.nothing_done):
        return error
    return after_change(error)
