"""Runs the Mirror with what it lacks for our statements; its options are the same.

Each addition stands where the Mirror was found wrong, and fails if that has changed:

* values of binds are translated with the block they are bound to, words of Oracle's in
  a text, too: ``{"number": 1}`` arrived as ``{"numeric": 1}``;
* ``SYSTIMESTAMP`` stood still during a transaction, also while it waited for a lock;
* no ``DUP_VAL_ON_INDEX``, no ``SYS_EXTRACT_UTC``;
* on PostgreSQL 15 with orafce 4.1: ``IS JSON`` and a setting that are newer.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import psycopg
import seerdb.server.backends.postgres
from psycopg import sql
from seerdb.server.launcher import main

MIRROR: Any = seerdb.server.backends.postgres

_UTC = """
CREATE OR REPLACE FUNCTION sys_extract_utc(ora_tstz) RETURNS timestamp
LANGUAGE sql IMMUTABLE STRICT AS $$ SELECT ($1).utc AT TIME ZONE 'UTC' $$;
"""
_CHANGES = (
    ("_HELPER_FUNCTIONS_DDL", "$1 IS JSON", "$1 IS NOT NULL"),
    ("_HELPER_FUNCTIONS_DDL", "ROW(now(), 0)", "ROW(clock_timestamp(), 0)"),
    (
        "_ORAFCE_SESSION_SETTINGS",
        "SET orafce.oracle_compatibility_date_limit = off",
        "SELECT 1",
    ),
)


class Hidden(sql.Literal):
    """A text in which there are no words to be translated."""

    def as_string(self, context: Any = None) -> str:  # noqa: ANN401 - psycopg's
        if not isinstance(self._obj, str):
            return super().as_string(context)
        return f"convert_from(decode('{self._obj.encode().hex()}', 'hex'), 'UTF8')"


class Psycopg:
    """As the Mirror sees it where it writes the values of binds into a block."""

    sql = SimpleNamespace(Literal=Hidden)

    def __getattr__(self, name: str) -> object:
        return getattr(psycopg, name)


def add() -> None:
    """To the module as it was imported."""
    for name, old, new in _CHANGES:
        text: str = getattr(MIRROR, name)
        assert old in text, f"{name} of this seerdb has no {old!r}"
        setattr(MIRROR, name, text.replace(old, new))
    MIRROR._HELPER_FUNCTIONS_DDL += _UTC
    MIRROR.psycopg = Psycopg()
    run = MIRROR.PostgresBackend._run_block

    def run_block(backend: Any, block: str, binds: Any) -> Any:  # noqa: ANN401
        known = block.replace("DUP_VAL_ON_INDEX", "unique_violation")
        return run(backend, known, binds)

    MIRROR.PostgresBackend._run_block = run_block


if __name__ == "__main__":
    add()
    main(sys.argv[1:])
