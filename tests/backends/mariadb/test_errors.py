"""Each number of the server's or the driver's, and what we make of it."""

from __future__ import annotations

import pytest
from asyncmy import errors as theirs

from aiorwlock_remote import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.dialect import MARIADB, MYSQL, ServerDialect
from aiorwlock_remote.cas import CasContention, RowLocked


@pytest.mark.parametrize("code", [2006, 2013, 2014, 1053, 1158, 1927, 4031])
def test_a_connection_that_is_gone(code: int) -> None:
    exc = theirs.OperationalError(code, "gone")
    error = errors.from_driver(exc, "db", MARIADB)
    assert isinstance(error, BackendUnavailable)
    assert not error.nothing_done
    assert errors.is_broken(exc)
    assert errors.from_connecting(exc, "db", MARIADB).nothing_done  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "exc",
    [
        OSError("reset"),
        theirs.InternalError("Packet sequence number wrong"),
        theirs.InterfaceError(0, "Not connected"),
        AttributeError("the driver's own mistake"),
    ],
)
def test_errors_without_a_server_code(exc: Exception) -> None:
    error = errors.from_driver(exc, "db", MARIADB)
    assert isinstance(error, BackendUnavailable)
    assert not error.nothing_done
    assert errors.is_broken(exc)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1213, CasContention),
        (1020, CasContention),
        (1205, RowLocked),
        (1969, RowLocked),
        (3024, RowLocked),
        (3572, RowLocked),
        (3101, CasContention),
        (1290, BackendUnavailable),
        (1040, BackendUnavailable),
        (4242, BackendUnavailable),
    ],
)
def test_errors_of_statements_certainly_not_done(
    code: int, kind: type[Exception]
) -> None:
    exc = theirs.OperationalError(code, "said\nin two lines")
    error = errors.from_driver(exc, "db", MARIADB)
    assert type(error) is kind
    assert error.nothing_done  # type: ignore[union-attr]
    assert str(error).startswith("db: said in two lines")
    assert not errors.is_broken(exc)


@pytest.mark.parametrize(
    ("code", "closed"), [(1290, True), (1836, True), (1180, True), (1040, False)]
)
def test_a_connection_that_is_closed(code: int, closed: bool) -> None:
    """One to a server that is read-only, too: another may reach the new primary."""
    exc = theirs.OperationalError(code, "said")
    assert errors.is_unusable(exc) == closed


@pytest.mark.parametrize("code", [1180, 3100])
def test_a_commit_that_failed(code: int) -> None:
    """What has become of it is asked over another connection."""
    exc = theirs.OperationalError(code, "Got error during COMMIT")
    error = errors.from_driver(exc, "db", MYSQL)
    assert type(error) is BackendUnavailable
    assert not error.nothing_done
    assert errors.is_broken(exc)


@pytest.mark.parametrize("dialect", [MARIADB, MYSQL], ids=lambda each: each.scheme)
@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        (1045, Unsupported, "{}://user"),
        (1146, Unsupported, "rwlock schema {}"),
        (1142, Unsupported, "GRANT SELECT"),
        (1048, Unsupported, "rwlock schema {}"),
        (1452, Unsupported, "rwlock schema {}"),
        (3819, Unsupported, "rwlock schema {}"),
        (4025, Unsupported, "rwlock schema {}"),
        (3159, Unsupported, "tls=yes"),
        (1665, Unsupported, "binlog_format"),
        (1406, ConfigurationError, "widen it"),
        (1104, ConfigurationError, "sql_big_selects = ON"),
        (1175, ConfigurationError, "sql_safe_updates = OFF"),
    ],
)
def test_errors_that_an_administrator_has_to_mend(
    dialect: ServerDialect, code: int, kind: type[Exception], hint: str
) -> None:
    error = errors.from_driver(theirs.OperationalError(code, "said"), "db", dialect)
    assert type(error) is kind
    assert hint.format(dialect.scheme) in str(error)
