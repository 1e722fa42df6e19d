"""The SQL of ``statements.sql``, with values written into the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.mariadb.dialect import ServerDialect
from aiorwlock_remote.cas.driver.executor import MutexChange, mutex_change_of

DoormanChange = Literal["change", "make", "adopt"]

# Whatever ``completion_type`` the session has: no new transaction, no disconnect.
COMMIT = "COMMIT AND NO CHAIN NO RELEASE"
ROLLBACK = "ROLLBACK AND NO CHAIN NO RELEASE"


class StepStatements(NamedTuple):
    """The statements of one step, joined: one request. May have names of values.

    ``doorman`` is the index of the one that changes the doormans row.
    """

    text: str
    doorman: int


def statement(name: str, tables: str = "", **values: object) -> str:
    """Return the statement ``name`` of ``statements.sql`` with ``values`` filled in.

    ``tables``: database of the tables; empty for that of the connection.
    """
    return _fill(name, _common(tables) | _literals(values))


def schema_statement(name: str, tables: str, dialect: ServerDialect) -> str:
    """Return the statement ``name`` of ``statements.sql``, which creates a table.

    ``tables``: database of the table; empty for that of the connection.
    """
    return _fill(name, _common(tables) | {"collation": dialect.collation})


def step_statements(
    doorman: DoormanChange,
    values: Mapping[str, object],
    tables: str,
    dialect: ServerDialect,
) -> StepStatements:
    """Return the SQL of a swap: it changes both rows of a resource, or neither.

    Rows are changed only if they are as the swap expects. ``doorman`` names the change
    of the doormans row, ``values`` are the swap's parameters, and ``tables`` is the
    database of the tables; empty for that of the connection.
    """
    wait = values.get("wait")
    text, index = _step_template(
        doorman,
        mutex_change_of(values),
        wait if isinstance(wait, int | float) and doorman == "change" else None,
        tables,
        dialect,
        free=values["i_ticket"] is None,
        begins=values["n_fence"] is not None,
    )
    return StepStatements(text % _literals(values), index)


def renewal_statements(
    rows: Sequence[Mapping[str, object]], tables: str, dialect: ServerDialect
) -> tuple[str, Sequence[int]]:
    """Return the SQL of many swaps that only renew: a transaction, without its COMMIT.

    It fails if another transaction has locked one of the rows. Also returns, for each
    swap, the index of the statement that changes its doormans row.
    """
    changes = _renewal_template(tables, dialect)
    text, size = ";".join(changes), len(changes)
    many = (text % _literals(values) for values in rows)
    indexes = range(size, size * (len(rows) + 1), size)
    return ";".join(("START TRANSACTION", *many)), indexes


@lru_cache(maxsize=64)
def _renewal_template(tables: str, dialect: ServerDialect) -> tuple[str, ...]:
    return _changes("change", 0.0, _names(tables, "taken"), dialect)


@lru_cache(maxsize=64)  # the waits differ
def _step_template(
    doorman: DoormanChange,
    mutex: MutexChange,
    wait: float | None,
    tables: str,
    dialect: ServerDialect,
    *,
    free: bool,
    begins: bool,
) -> StepStatements:
    """Return the statements of a step, in which values are still named.

    ``wait``: seconds to wait for a locked row, None if there is no such limit;
    ``free``: a mutex row is not expected; ``begins``: a phase begins.
    """
    seat = ("free" if free else "taken") if mutex == "stay" else ""
    known = _names(tables, seat, begins=begins)
    changes = _changes(doorman, wait, known, dialect)
    index = len(changes) - 1
    end: tuple[str, ...] = (COMMIT,)
    if mutex != "stay":
        changes = *changes, _fill(mutex, known)
        if mutex != "sit":  # an INSERT that makes no row fails
            end = dialect.commit_if(known["changed"], COMMIT)
    if len(changes) > 1:
        changes, index = ("START TRANSACTION", *changes), index + 1
    return StepStatements(";".join((*changes, *end)), index)


def _names(tables: str, seat: str, *, begins: bool = False) -> _Named:
    """Return the parts of a step by name. ``seat`` names what its change expects of the
    mutex row; "": the change of that row finds out.
    """
    known = _Named(_common(tables) | {"kind": "%(i_kind)s", "number": "%(i_number)s"})
    for name in ("changed", "in_time"):
        known[name] = _fill(name, known)
    known["record"] = _fill("begins", known) if begins else known["n_record"]
    known["seat"] = _fill(seat, known) if seat else "TRUE"
    return known


def _changes(
    doorman: DoormanChange, wait: float | None, known: _Named, dialect: ServerDialect
) -> tuple[str, ...]:
    change = _fill(doorman, known)
    if wait is None:
        return (change,)
    return dialect.limit_lock_wait(change, _fill("lock", known), wait)


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


class _Named(dict[str, str]):
    """Texts by name; for any other name, where a value is to be filled in by ``%``."""

    def __missing__(self, name: str) -> str:
        return f"%({name})s"


def _literals(values: Mapping[str, object]) -> dict[str, str]:
    # Nearly all values are texts, and a call for each takes as long as the rest.
    return {
        key: f"_utf8mb4 X'{value.encode().hex()}'"
        if isinstance(value, str)
        else literal(value)
        for key, value in values.items()
    }


def _common(tables: str) -> dict[str, str]:
    schema = f"`{tables.replace('`', '``')}`." if tables else ""
    return {"schema": schema, "now": _texts()["now"]}


def _fill(name: str, known: Mapping[str, str]) -> str:
    return _texts()[name].format_map(known)


def _texts() -> dict[str, str]:
    return load_statements("aiorwlock_remote.backends.mariadb", "statements.sql")
