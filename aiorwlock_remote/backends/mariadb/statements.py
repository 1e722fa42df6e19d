"""Reads ``load_statements.sql``, and writes values into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.cas.driver.executor import MutexChange

DoormanChange = Literal["change", "make", "adopt"]

COMMIT = "COMMIT AND NO CHAIN NO RELEASE"
ROLLBACK = "ROLLBACK AND NO CHAIN NO RELEASE"
"""And no more, whatever ``completion_type`` the session has."""
NO_ROW_LIMIT = 2**64 - 1
"""Of ``sql_select_limit``: as many rows as there are."""


def _all() -> dict[str, str]:
    return load_statements("aiorwlock_remote.backends.mariadb", "statements.sql")


def statement(name: str, tables: str = "", **values: object) -> str:
    """The statement of that name, for the tables of a database, with these values."""
    known = {key: literal(value) for key, value in values.items()}
    return _written(name, tables, known)


def step(
    door: DoormanChange, seat: MutexChange, values: Mapping[str, object], tables: str
) -> tuple[str, ...]:
    """What changes both rows if they are what they are believed to be.

    One statement, which changes the doorman; or a transaction of that and a second.
    """
    known = {key: literal(value) for key, value in values.items()}
    known["in_time"] = _written("in_time", tables, known)
    begins = values["n_fence"] is not None
    known["record"] = _written("begins", tables, known) if begins else known["n_record"]
    if seat == "sit":
        known["seat"] = "TRUE"  # its own statement finds out
    else:
        free = values["i_ticket"] is None
        known["seat"] = _written("free" if free else "taken", tables, known)
    first = _written(door, tables, known)
    if "wait" in values and door == "change":
        first = f"SET STATEMENT {_waits(values['wait'])} FOR {first}"
    if seat == "stay":
        return (first,)
    return "START TRANSACTION", first, _written(seat, tables, known), COMMIT


def _waits(seconds: object) -> str:
    """How long a statement waits for a row that is locked.

    InnoDB counts whole seconds; 0 does not wait. A part of a second is set as a limit
    of the whole statement. Without a wait there is no such limit: it could end a
    statement that waits only for the disk.
    """
    if not seconds:
        return "innodb_lock_wait_timeout = 0"
    return f"innodb_lock_wait_timeout = 1, max_statement_time = {seconds}"


def literal(value: object) -> str:
    """A value as it stands in a statement.

    Texts are written in hexadecimal: what a backslash or a quote means depends on the
    session, and so does the character set of anything else.
    """
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return repr(value)
    assert isinstance(value, str)
    return f"_utf8mb4 X'{value.encode().hex()}'"


def _written(name: str, tables: str, known: Mapping[str, str]) -> str:
    schema = f"`{tables.replace('`', '``')}`." if tables else ""
    text = _all()[name]
    return text.format_map({**known, "schema": schema, "now": _all()["now"]})
