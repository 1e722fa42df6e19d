"""What SQLAlchemy says → what we raise: mostly what the driver under it said."""

from __future__ import annotations

from sqlalchemy.exc import DataError, DBAPIError, StatementError

from aiorwlock_remote.errors import BackendError, ConfigurationError
from aiorwlock_remote.integrations import _driver_codes as driver_codes


def from_driver(
    exc: Exception, where: str, *, asked: bool
) -> BackendError | ConfigurationError:
    """The error of ours for what was raised for one request; see ``_driver_codes``."""
    if not isinstance(exc, DBAPIError):
        if isinstance(exc, StatementError):  # a value that is no good for the column
            said = exc if exc.orig is None else exc.orig
            return ConfigurationError(what=f"{where}: {' '.join(str(said).split())}")
        return driver_codes.from_driver_codes(exc, where, asked=asked)
    lost = exc.connection_invalidated
    error = driver_codes.from_driver_codes(exc.orig, where, asked=asked, lost=lost)
    if isinstance(exc, DataError) and not isinstance(error, ConfigurationError):
        return ConfigurationError(what=error.what)
    return error
