"""The SQL of ``statements.sql``, with values written into the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.mariadb.dialect import ServerDialect
from aiorwlock_remote.cas.driver.executor import MutexChange

DoormanChange = Literal["change", "make", "adopt"]

# Whatever ``completion_type`` the session has: no new transaction, no disconnect.
COMMIT = "COMMIT AND NO CHAIN NO RELEASE"
ROLLBACK = "ROLLBACK AND NO CHAIN NO RELEASE"


class StepStatements(NamedTuple):
    """The statements of one step, to be sent as one request.

    ``doorman`` is the index of the one that changes the doormans row; the next one
    changes the mutex row, if any does.
    """

    texts: tuple[str, ...]
    doorman: int


def statement(name: str, tables: str = "", **values: object) -> str:
    """Return the statement ``name`` of ``statements.sql`` with ``values`` filled in.

    ``tables``: database of the tables; empty for that of the connection.
    """
    return _fill(name, tables, {key: literal(value) for key, value in values.items()})


def schema_statement(name: str, tables: str, dialect: ServerDialect) -> str:
    """Return the statement ``name`` of ``statements.sql``, which creates a table.

    ``tables``: database of the table; empty for that of the connection.
    """
    return _fill(name, tables, {"collation": dialect.collation})


def step_statements(
    doorman: DoormanChange,
    mutex: MutexChange,
    values: Mapping[str, object],
    tables: str,
    dialect: ServerDialect,
) -> StepStatements:
    """Return the SQL of a swap: it changes both rows of a resource, or neither.

    Rows are changed only if they are as the swap expects. ``doorman`` and ``mutex``
    name the change of each row, ``values`` are the swap's parameters, and ``tables`` is
    the database of the tables; empty for that of the connection.
    """
    known = {key: literal(value) for key, value in values.items()}
    known["in_time"] = _fill("in_time", tables, known)
    known["changed"] = _fill("changed", tables, known)
    begins = values["n_fence"] is not None
    known["record"] = _fill("begins", tables, known) if begins else known["n_record"]
    if mutex == "sit":
        known["seat"] = "TRUE"  # the second statement finds out
    else:
        free = values["i_ticket"] is None
        known["seat"] = _fill("free" if free else "taken", tables, known)
    changes: tuple[str, ...] = (_fill(doorman, tables, known),)
    wait = values.get("wait")
    if isinstance(wait, int | float) and doorman == "change":
        lock = _fill("lock", tables, known)
        changes = dialect.limit_lock_wait(changes[0], lock, wait)
    index = len(changes) - 1
    if mutex != "stay":
        changes = *changes, _fill(mutex, tables, known)
    if len(changes) == 1:
        return StepStatements((*changes, COMMIT), index)
    return StepStatements(("START TRANSACTION", *changes, COMMIT), index + 1)


def literal(value: object) -> str:
    """Return a value as SQL literal, to be part of a statement.

    Texts are written in hexadecimal, because the meaning of quotes, backslashes and
    other characters depends on the session.
    """
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return repr(value)
    assert isinstance(value, str)
    return f"_utf8mb4 X'{value.encode().hex()}'"


def _fill(name: str, tables: str, known: Mapping[str, str]) -> str:
    texts = load_statements("aiorwlock_remote.backends.mariadb", "statements.sql")
    schema = f"`{tables.replace('`', '``')}`." if tables else ""
    return texts[name].format_map({**known, "schema": schema, "now": texts["now"]})
