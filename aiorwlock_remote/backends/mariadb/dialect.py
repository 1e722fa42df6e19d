"""SQL that only MariaDB has: versions, session variables, time limits of statements.

The rest of this package fits each server that speaks MySQL's protocol and has InnoDB.
To support another one, write a class with the members of ``MariadbDialect``, and
replace ``server``, ``columns`` and ``schema_…`` in ``statements.sql`` and the codes in
``errors.py``.
"""

from __future__ import annotations

import re
from typing import ClassVar

from aiorwlock_remote.core.row_dialects import MARIADB as MARIADB_ROWS
from aiorwlock_remote.core.row_dialects import Dialect

NO_ROW_LIMIT = 2**64 - 1
"""Value of ``sql_select_limit`` with which a session returns all rows."""


class MariadbDialect:
    """SQL that MariaDB 10.6 or later does not share with MySQL and its relatives."""

    name: ClassVar[str] = "MariaDB"
    min_version: ClassVar[tuple[int, int]] = (10, 6)
    collation: ClassVar[str] = "utf8mb4_nopad_bin"
    """Collation in which texts are equal only if they are the same, byte by byte."""
    rows: ClassVar[Dialect] = MARIADB_ROWS
    """SQL dialect of the statements for row locks in the user's tables."""

    def is_supported(self, version: str) -> bool:
        """Return True if a server whose ``version()`` is ``version`` is supported."""
        numbers = re.match(r"(\d+)\.(\d+)", version)
        return (
            numbers is not None
            and tuple(map(int, numbers.groups())) >= self.min_version
            and "mariadb" in version.lower()
        )

    def session(self, seconds: float) -> tuple[str, ...]:
        """Return the SQL statements to run first on a new connection.

        ``seconds``: time limit of each later statement, set in the server.
        """
        return (
            "SET NAMES utf8mb4",
            # A name too long must not be cut, and reads must see all rows. The server
            # gives up before we do: then it is known that nothing was done.
            (
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES', "
                f"max_statement_time = {seconds}, sql_select_limit = {NO_ROW_LIMIT}, "
                "sql_big_selects = ON, sql_safe_updates = OFF, unique_checks = ON"
            ),
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )

    def limit_lock_wait(self, statement: str, seconds: object) -> str:
        """Return ``statement`` with a limit in seconds on its wait for a locked row.

        InnoDB counts whole seconds, and 0 means not to wait. A fraction of a second is
        set as a time limit of the whole statement. With 0 no such limit is set, because
        it could end a statement that waits only for the disk.
        """
        limit = "innodb_lock_wait_timeout = 0"
        if seconds:
            limit = f"innodb_lock_wait_timeout = 1, max_statement_time = {seconds}"
        return f"SET STATEMENT {limit} FOR {statement}"

    def limit_time(self, statement: str, seconds: float) -> str:
        """Return ``statement`` with a time limit in seconds, enforced by the server."""
        return f"SET STATEMENT max_statement_time = {seconds:f} FOR {statement}"


MARIADB = MariadbDialect()
