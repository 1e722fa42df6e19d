"""What MariaDB alone has: its versions, session variables and limits of statements.

Everything else in this package holds for each server that speaks MySQL's protocol and
has InnoDB. Another one needs a class with these names, its own ``server``, ``columns``
and ``schema_…`` in ``statements.sql``, and its codes in ``errors.py``.
"""

from __future__ import annotations

import re
from typing import ClassVar

from aiorwlock_remote.core.row_dialects import MARIADB as MARIADB_ROWS
from aiorwlock_remote.core.row_dialects import Dialect

NO_ROW_LIMIT = 2**64 - 1
"""Value of ``sql_select_limit`` that keeps no rows back."""


class MariadbDialect:
    """MariaDB 10.6 and later."""

    name: ClassVar[str] = "MariaDB"
    min_version: ClassVar[tuple[int, int]] = (10, 6)
    collation: ClassVar[str] = "utf8mb4_nopad_bin"
    """The collation in which texts are equal only if they are the same."""
    rows: ClassVar[Dialect] = MARIADB_ROWS
    """The dialect of statements on the user's tables."""

    def is_supported(self, version: str) -> bool:
        """Return whether a server with this ``version()`` is one of these."""
        numbers = re.match(r"(\d+)\.(\d+)", version)
        return (
            numbers is not None
            and tuple(map(int, numbers.groups())) >= self.min_version
            and "mariadb" in version.lower()
        )

    def session(self, seconds: float) -> tuple[str, ...]:
        """Return what a session begins with, whatever the server is set to.

        ``seconds``: after which the server gives a statement up.
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
        """Return a statement that waits for a locked row for so long at most.

        InnoDB counts whole seconds; 0 does not wait. A part of a second is set as a
        limit of the whole statement. With 0 there is no such limit: it could end a
        statement that waits only for the disk.
        """
        limit = "innodb_lock_wait_timeout = 0"
        if seconds:
            limit = f"innodb_lock_wait_timeout = 1, max_statement_time = {seconds}"
        return f"SET STATEMENT {limit} FOR {statement}"

    def limit_time(self, statement: str, seconds: float) -> str:
        """Return a statement that the server gives up after so many seconds."""
        return f"SET STATEMENT max_statement_time = {seconds:f} FOR {statement}"


MARIADB = MariadbDialect()
