"""A real Oracle Database, for those who have one: ``ORACLE_DSN`` is its URL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import oracledb

from aiorwlock_remote.backends.oracle.options import options_of
from aiorwlock_remote.backends.oracle.statements import statements_of
from aiorwlock_remote.core.url import parse

THERE_ALREADY = "ORA-00955"


@dataclass(frozen=True, slots=True)
class OracleDatabase:
    """A user that may create tables."""

    url: str

    @property
    def login(self) -> dict[str, str]:
        """For ``oracledb.connect`` and its kin."""
        options = options_of(parse(self.url))
        dsn = f"{options.host}:{options.port}/{options.service}"
        return {"user": options.username, "password": options.password, "dsn": dsn}

    def at(self, profile: str) -> Self:  # noqa: ARG002 - it is what it is
        """There is one version of it."""
        return self


def real_oracle() -> OracleDatabase | None:
    """The one of the environment, with our tables in it."""
    url = os.environ.get("ORACLE_DSN")
    if not url:
        return None
    database = OracleDatabase(url)
    with oracledb.connect(**database.login) as connection:
        for statement in statements_of():
            try:
                connection.cursor().execute(statement)
            except oracledb.DatabaseError as exc:
                if exc.args[0].full_code != THERE_ALREADY:
                    raise
    return database
