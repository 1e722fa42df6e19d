"""Each code means the same, whatever the text; and what real ones look like."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import oracledb
import pytest

from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.cas import CasContention, RowLocked
from aiorwlock_remote.errors import (
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    Unsupported,
)
from tests.servers.oracle.client import OracleUser


class Said:
    """What the driver puts into its exceptions, as far as we look at it."""

    def __init__(self, full_code: str, text: str = "some words") -> None:
        self.full_code = full_code
        self._text = f"{full_code}: {text}\nHelp: https://example.org/"

    def __str__(self) -> str:
        return self._text


def raised(code: str) -> oracledb.Error:
    return oracledb.DatabaseError(Said(code))


@pytest.mark.parametrize(
    ("code", "kind", "nothing_done"),
    [
        ("ORA-00028", BackendUnavailable, False),
        ("ORA-03113", BackendUnavailable, False),
        ("ORA-01013", BackendUnavailable, False),
        ("DPY-4011", BackendUnavailable, False),
        ("DPY-4024", BackendUnavailable, False),
        ("DPY-1001", BackendUnavailable, False),
        ("ORA-00600", BackendUnavailable, False),
        ("ORA-99999", BackendUnavailable, False),
        ("ORA-00054", RowLocked, True),
        ("ORA-30006", RowLocked, True),
        ("ORA-00060", CasContention, True),
        ("ORA-08177", CasContention, True),
        ("ORA-01403", BackendUnavailable, True),
        ("ORA-01033", BackendUnavailable, True),
        ("ORA-16000", BackendUnavailable, True),
        ("ORA-01653", BackendUnavailable, True),
        ("ORA-12514", Unsupported, True),
        ("DPY-6001", Unsupported, True),
        ("ORA-01017", Unsupported, True),
        ("ORA-28000", Unsupported, True),
        ("ORA-00942", Unsupported, True),
        ("ORA-06550", Unsupported, True),
        ("ORA-01031", Unsupported, True),
        ("DPY-3010", Unsupported, True),
        ("DPY-3001", Unsupported, True),
        ("ORA-12899", ConfigurationError, None),
        ("ORA-06502", BadRecord, True),
    ],
)
def test_a_code(code: str, kind: type[Exception], nothing_done: bool | None) -> None:
    error = errors.from_driver(raised(code), "db")
    assert type(error) is kind
    assert getattr(error, "nothing_done", None) is nothing_done
    assert "example.org" not in str(error)


def test_the_cause_of_an_error_decides() -> None:
    outer = raised("DPY-6005")
    outer.__cause__ = raised("DPY-6001")
    assert isinstance(errors.from_driver(outer, "db"), Unsupported)
    outer.__cause__ = ConnectionRefusedError(111, "refused")
    assert isinstance(errors.from_driver(outer, "db"), BackendUnavailable)


@pytest.mark.parametrize(
    "code",
    # The listener is full, or the database starts (ORA-12516, 12528); the pool has
    # none free, or is closed; the server hung up; nobody was there.
    ["DPY-6000", "DPY-4005", "DPY-1002", "DPY-4011", "DPY-6005"],
)
def test_before_there_is_a_connection_nothing_was_done(code: str) -> None:
    error = errors.from_connecting(raised(code), "db", known=False)
    assert isinstance(error, BackendUnavailable)
    assert error.nothing_done
    error = errors.from_driver(raised(code), "db")
    assert isinstance(error, BackendUnavailable)
    assert not error.nothing_done


@pytest.mark.parametrize("code", ["ORA-12514", "DPY-6001", "DPY-6003"])
def test_a_service_that_was_there_comes_back(code: str) -> None:
    """A listener knows of it only once the database has started."""
    outer = raised("DPY-6005")
    outer.__cause__ = raised(code)
    first = errors.from_connecting(outer, "db", known=False)
    assert isinstance(first, Unsupported)
    later = errors.from_connecting(outer, "db", known=True)
    assert isinstance(later, BackendUnavailable)
    assert later.nothing_done


def test_our_own_errors_are_not_mapped() -> None:
    ours = BackendUnavailable(what="x")
    assert errors.from_driver(ours, "db") is ours


def test_the_table_of_the_module_names_what_is_mapped() -> None:
    """Every code of the table is one the map treats so."""
    table = (errors.__doc__ or "").split("=\n")[2]
    kinds: dict[str, Any] = {
        "BackendUnavailable": BackendUnavailable,
        "Unsupported": Unsupported,
        "ConfigurationError": ConfigurationError,
        "BadRecord": BadRecord,
    }
    for line in table.splitlines():
        kind = next((kinds[name] for name in kinds if name in line), None)
        for code in re.findall(r"\b(?:ORA-|DPY-)?\d{4,5}\b", line):
            full = code if "-" in code else f"ORA-{code}"
            if kind is not None and full != "DPY-6005":
                assert type(errors.from_driver(raised(full), "db")) is kind, full


def test_no_text_is_looked_at() -> None:
    """Texts differ between versions and languages."""
    source = Path(errors.__file__).read_text()
    body = source[source.index("def from_driver(") : source.index("def _line(")]
    assert "str(exc)" not in body
    assert ".message" not in body


@pytest.mark.parametrize("profile", ["12.2", "19c", "23ai"])
def test_real_ones(user: OracleUser, profile: str) -> None:
    """As the driver raises them at a server."""
    login = user.at(profile).login

    def code(**changed: str) -> str:
        with pytest.raises(oracledb.Error) as caught:
            oracledb.connect(**{**login, **changed}, retry_count=0)
        return errors.code_of(caught.value)

    assert code(password="wrong") == "ORA-01017"  # noqa: S106 - that is the point
    service = login["dsn"].rpartition("/")[0] + "/NOPE"
    assert code(dsn=service) in {"DPY-6001", "ORA-12514"}
    with oracledb.connect(**login) as connection, connection.cursor() as cursor:
        with pytest.raises(oracledb.Error) as caught:
            cursor.execute("SELECT 1 FROM nowhere")
        assert errors.code_of(caught.value) == "ORA-00942"
        with pytest.raises(oracledb.Error) as caught:
            cursor.execute("BEGIN DELETE FROM nowhere; END;")
        assert errors.code_of(caught.value) == "ORA-06550"
