"""What MariaDB and MySQL do not share: versions, session variables, time limits.

The rest of this package fits both. Each server has a dialect, an instance of a subclass
of ``ServerDialect``.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from aiorwlock_remote.core.row_dialects import MARIADB as MARIADB_ROWS
from aiorwlock_remote.core.row_dialects import Dialect
from aiorwlock_remote.errors import Unsupported

NO_ROW_LIMIT = 2**64 - 1
"""Value of ``sql_select_limit`` with which a session returns all rows."""
_SESSION = (
    f"sql_select_limit = {NO_ROW_LIMIT}, sql_big_selects = ON, "
    "sql_safe_updates = OFF, unique_checks = ON, autocommit = ON"
)
# Other servers speak MySQL's protocol and call themselves MySQL, but lock no rows as
# InnoDB does.
_OTHER_PRODUCTS = ("TiDB", "OceanBase", "Vitess")


class LimitedStatement(NamedTuple):
    """A statement with a time limit.

    ``before`` and ``after`` are sent around it in the same request; ``after`` is also
    sent if the statement has failed.
    """

    statement: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class ServerDialect(ABC):
    """Base of the two dialects."""

    name: ClassVar[str]
    scheme: ClassVar[str]
    """Scheme of URLs, and the dialect's name for SQLAlchemy and ``rwlock schema``."""
    backend: ClassVar[str]
    """Name of the class that takes a user's pool."""
    min_version: ClassVar[tuple[int, ...]]
    collation: ClassVar[str]
    """Collation in which texts are equal only if they are the same, byte by byte."""
    rows: ClassVar[Dialect] = MARIADB_ROWS
    """SQL dialect of the statements for row locks in the user's tables."""

    @property
    def schema_hint(self) -> str:
        """Hint for errors about the lock tables."""
        return f"rwlock schema {self.scheme} prints the tables and grants"

    @property
    def example_url(self) -> str:
        return f"{self.scheme}://user:password@host:3306/database"

    def check_version(self, version: str, where: str) -> None:
        """Raise ``Unsupported`` if ``version()`` is too old or of another product."""
        numbers = re.match(r"\d+(\.\d+)*", version)
        found = tuple(map(int, numbers[0].split("."))) if numbers else ()
        product = product_of(version)
        if product == self.name and found >= self.min_version:
            return
        least = ".".join(map(str, self.min_version))
        hint = f"{self.name} {least} or later is needed"
        other = next((d for d in (MARIADB, MYSQL) if d.name == product), None)
        if other is not None and other is not self:
            hint += f"; this is {product}: use {other.scheme}://, or {other.backend}"
        raise Unsupported(what=f"{where}: version {version}", hint=hint)

    @abstractmethod
    def session(self, seconds: float) -> tuple[str, ...]:
        """Return the SQL statements to run first on a new connection.

        ``seconds``: time limit of each later statement, set in the server.
        """

    @abstractmethod
    def limit_lock_wait(
        self, change: str, lock: str, seconds: float
    ) -> tuple[str, ...]:
        """Return statements that make a change and limit its wait for a locked row.

        Several statements must be sent as one transaction; ``change`` is the last one.

        Args:
            change: An UPDATE of one row.
            lock: A ``SELECT … FOR UPDATE`` of that row.
            seconds: The limit; 0 means not to wait.
        """

    @abstractmethod
    def commit_if(self, condition: str, commit: str) -> tuple[str, ...]:
        """Return statements that fail if ``condition`` does, and else run ``commit``.

        The condition is evaluated first, so it may ask what the statement before did.
        """

    @abstractmethod
    def limit_time(self, statement: str, seconds: float) -> LimitedStatement:
        """Return an UPDATE with a time limit in seconds, enforced by the server."""


class MariadbDialect(ServerDialect):
    """SQL that MariaDB 10.6 or later does not share with MySQL."""

    name = "MariaDB"
    scheme = "mariadb"
    backend = "MariadbBackend"
    min_version: ClassVar[tuple[int, ...]] = (10, 6)
    collation = "utf8mb4_nopad_bin"

    def session(self, seconds: float) -> tuple[str, ...]:
        return (
            "SET NAMES utf8mb4",
            # A name too long must not be cut, and reads must see all rows. The server
            # gives up before we do: then it is known that nothing was done.
            (
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES', "
                f"max_statement_time = {seconds}, {_SESSION}"
            ),
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )

    def limit_lock_wait(
        self, change: str, lock: str, seconds: float
    ) -> tuple[str, ...]:
        # InnoDB counts whole seconds, and 0 means not to wait. A fraction of a second
        # is set as a time limit of the whole statement. With 0 no such limit is set,
        # because it could end a statement that waits only for the disk.
        del lock
        limit = "innodb_lock_wait_timeout = 0"
        if seconds:
            limit = f"innodb_lock_wait_timeout = 1, max_statement_time = {seconds}"
        return (f"SET STATEMENT {limit} FOR {change}",)

    def commit_if(self, condition: str, commit: str) -> tuple[str, ...]:
        # A commit waits for no row: the variable is there for its value alone.
        limit = f"innodb_lock_wait_timeout = NOT {condition}"
        return (f"SET STATEMENT {limit} FOR {commit}",)

    def limit_time(self, statement: str, seconds: float) -> LimitedStatement:
        limit = f"SET STATEMENT max_statement_time = {seconds:f}"
        return LimitedStatement(f"{limit} FOR {statement}")


class MysqlDialect(ServerDialect):
    """SQL that MySQL 8.0.17 or later does not share with MariaDB.

    Time limits of statements are for reads alone, in milliseconds; a ``SELECT … FOR
    UPDATE`` is a read. InnoDB limits the wait for a locked row in whole seconds, at
    least 1. So a limit below 2 seconds may be longer than the time after which the
    client gives up; the outcome is then found out as that of any lost answer.
    """

    name = "MySQL"
    scheme = "mysql"
    backend = "MysqlBackend"
    min_version: ClassVar[tuple[int, ...]] = (8, 0, 17)  # which has the collation
    collation = "utf8mb4_0900_bin"

    def session(self, seconds: float) -> tuple[str, ...]:
        wait = _whole_seconds(seconds)
        return (
            "SET NAMES utf8mb4",
            (
                # The other modes are no concern of ours: without them, the server warns
                # of their future, which costs a request more.
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,"
                "NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO', "
                f"max_execution_time = {_milliseconds(seconds)}, "
                f"innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}, "
                f"{_SESSION}"
            ),
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )

    def limit_lock_wait(
        self, change: str, lock: str, seconds: float
    ) -> tuple[str, ...]:
        if not seconds:
            return f"{lock} NOWAIT", change
        limit = f"SELECT /*+ MAX_EXECUTION_TIME({_milliseconds(seconds)}) */"
        return f"{limit}{lock.removeprefix('SELECT')}", change

    def commit_if(self, condition: str, commit: str) -> tuple[str, ...]:
        # A variable that any user may set, and that each step sets anyway. After a user
        # variable, ProxySQL would no longer share the connection; DO hides errors in
        # some versions.
        return f"SET SESSION last_insert_id = NOT {condition}", commit

    def limit_time(self, statement: str, seconds: float) -> LimitedStatement:
        # The session may be of the user's pool, and is to be as it was.
        kept = "@rwlock_lock_wait"
        wait = "innodb_lock_wait_timeout"
        return LimitedStatement(
            statement,
            (f"SET {kept} = @@{wait}, SESSION {wait} = {_whole_seconds(seconds)}",),
            (f"SET SESSION {wait} = {kept}",),
        )


def product_of(version: str) -> str:
    """Return the name of the product whose ``version()`` is ``version``."""
    known = ("MariaDB", *_OTHER_PRODUCTS)
    return next((name for name in known if name.lower() in version.lower()), "MySQL")


def _whole_seconds(seconds: float) -> int:
    return max(1, math.floor(seconds))


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))  # 0 would be no limit


MARIADB = MariadbDialect()
MYSQL = MysqlDialect()
