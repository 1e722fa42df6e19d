"""What is known of a request that failed, by what the driver raised."""

from __future__ import annotations

import errno
import ssl

import psycopg
import pytest
from asyncpg import ConnectionDoesNotExistError, InterfaceError

from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.integrations import _row_locks as driver_codes


@pytest.mark.parametrize(
    "lost",
    [
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
        ssl.SSLError(1, "[SSL] record layer failure"),
    ],
)
def test_an_error_of_the_system_is_no_code_of_the_server(lost: OSError) -> None:
    """Its number tells nothing of what the server did."""
    asked = driver_codes.from_driver_codes(lost, "there")
    unasked = driver_codes.from_driver_codes(lost, "there", asked=False)
    assert isinstance(asked, BackendUnavailable)
    assert not asked.nothing_done
    assert isinstance(unasked, BackendUnavailable)
    assert unasked.nothing_done


@pytest.mark.parametrize(
    ("error", "nothing_done"),
    [
        (InterfaceError("connection is closed"), True),
        (InterfaceError("cannot perform operation: connection is closed"), True),
        (psycopg.OperationalError("the connection is closed"), True),
        (psycopg.OperationalError("the connection is lost"), False),
        (psycopg.OperationalError("server closed the connection unexpectedly"), False),
        (ConnectionDoesNotExistError("connection was closed in the middle"), False),
    ],
)
def test_a_connection_that_was_closed_before(
    error: Exception, *, nothing_done: bool
) -> None:
    """A driver that knew has sent nothing."""
    closed = driver_codes.from_driver_codes(error, "there", lost=True)
    assert isinstance(closed, BackendUnavailable)
    assert closed.nothing_done == nothing_done


def test_a_statement_refused_by_the_driver_was_not_sent() -> None:
    """A value that it has no word for, say."""
    refused = psycopg.ProgrammingError("cannot adapt type 'object'")
    assert isinstance(
        driver_codes.from_driver_codes(refused, "there"), ConfigurationError
    )
    refused = psycopg.errors.UndefinedTable("relation is not there")
    assert isinstance(driver_codes.from_driver_codes(refused, "there"), Unsupported)
    lost = psycopg.OperationalError("the connection is lost")
    assert isinstance(driver_codes.from_driver_codes(lost, "there"), BackendUnavailable)
