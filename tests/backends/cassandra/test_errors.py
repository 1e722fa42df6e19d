"""What is certainly not done, and what nobody knows."""

from __future__ import annotations

from typing import Any

import cassandra
import pytest
from cassandra import connection, protocol
from cassandra.cluster import NoHostAvailable
from cassandra.pool import NoConnectionsAvailable

from aiorwlock_remote import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.backends.cassandra.errors import from_driver
from aiorwlock_remote.cas import CasContention

CAS = cassandra.WriteType.CAS

NOT_DONE: list[Any] = [
    cassandra.Unavailable("x", 4, 2, 1),
    protocol.OverloadedErrorMessage(0x1001, "overloaded", None),
    protocol.IsBootstrappingErrorMessage(0x1002, "bootstrapping", None),
    NoHostAvailable("x", {}),
    NoHostAvailable("x", {"h": connection.ConnectionException("marked down")}),
    NoHostAvailable("x", {"h": NoConnectionsAvailable()}),
    NoHostAvailable("x", ["too-far-away"]),
    cassandra.UnresolvableContactPoints({}),
]
UNKNOWN: list[Any] = [
    protocol.OverloadedErrorMessage(0x1001, "Too many in flight hints: 1024", {}),
    cassandra.WriteTimeout("x after 0 contention retries", write_type=CAS),
    cassandra.ReadTimeout("x"),
    cassandra.WriteFailure("x"),
    cassandra.ReadFailure("x"),
    cassandra.OperationTimedOut(),
    connection.ConnectionShutdown("closed"),
    connection.ConnectionException("reset"),
    protocol.ErrorMessage(0x1700, "CAS_WRITE_UNKNOWN", None),
    protocol.ServerError(0x0000, "oops", None),
    RuntimeError("of the driver's"),
]
GAVE_UP: list[Any] = [
    cassandra.WriteTimeout("x after 22 contention retries", write_type=CAS),
    cassandra.ReadTimeout("x", consistency=cassandra.ConsistencyLevel.SERIAL),
]
UNFIT: list[tuple[Any, str]] = [
    (cassandra.InvalidRequest("unconfigured table"), "rwlock schema cassandra"),
    (protocol.SyntaxException(0x2000, "line 1", None), "rwlock schema cassandra"),
    (cassandra.Unauthorized("no MODIFY"), "GRANT MODIFY"),
    (cassandra.AuthenticationFailed("bad"), "cassandra://user:password@"),
    (
        NoHostAvailable("x", {"h": cassandra.AuthenticationFailed("bad")}),
        "cassandra://user:password@",
    ),
]


@pytest.mark.parametrize("exc", NOT_DONE, ids=range(len(NOT_DONE)))
def test_certainly_not_done(exc: Exception) -> None:
    error = from_driver(exc, "h:9042")
    assert isinstance(error, BackendUnavailable)
    assert error.nothing_done
    assert error.what.startswith("h:9042")


@pytest.mark.parametrize("exc", UNKNOWN, ids=range(len(UNKNOWN)))
def test_errors_with_an_unknown_outcome(exc: Exception) -> None:
    error = from_driver(exc, "h:9042")
    assert isinstance(error, BackendUnavailable)
    assert not error.nothing_done
    assert type(exc).__name__ in error.what


@pytest.mark.parametrize(("exc", "hint"), UNFIT, ids=range(len(UNFIT)))
def test_errors_of_an_unfit_cluster(exc: Exception, hint: str) -> None:
    error = from_driver(exc, "h:9042")
    assert isinstance(error, Unsupported)
    assert hint in error.hint


def test_a_certificate_of_a_stranger() -> None:
    behind = OSError(
        "Tried connecting to [('127.0.0.1', 9042)]. Last error: [SSL: CERTIFICATE_"
        "VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1)"
    )
    error = from_driver(NoHostAvailable("x", {"h": behind}), "h:9042")
    assert isinstance(error, Unsupported)
    assert error.what.endswith("is not trusted: self-signed certificate")


def test_a_session_that_became_legacy() -> None:
    exc = ValueError("Cannot specify execution_profile while using legacy parameters.")
    assert isinstance(from_driver(exc, "h"), ConfigurationError)


def test_ours_stay_as_they_are() -> None:
    error = Unsupported(what="x")
    assert from_driver(error, "h") is error


@pytest.mark.parametrize("exc", GAVE_UP, ids=range(len(GAVE_UP)))
def test_worth_another_try(exc: Exception) -> None:
    error = from_driver(exc, "h:9042")
    assert isinstance(error, CasContention)
    assert not error.nothing_done


def test_the_drivers_name_of_a_connection_is_left_out() -> None:
    message = (
        "Connection <ReadConnection(139830) 10.0.0.1:9042 (closed)> is already closed"
    )
    ended = connection.ConnectionShutdown(message)
    said = str(from_driver(NoHostAvailable("x", {"node": ended}), "cluster"))
    assert said == "cluster: no node can be reached (connection is already closed)"
