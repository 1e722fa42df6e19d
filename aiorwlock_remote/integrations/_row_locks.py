"""Plans of row locks, each carried out in a task of its own.

What drivers of databases say, by their codes → what we raise, for row locks.

=========================================  ===================  =============
what is raised                             we raise             carried out?
=========================================  ===================  =============
before anything was asked                  BackendUnavailable   no
no such table, column or function; type    Unsupported          no
no right; read-only                        Unsupported          no
deadlock, serialization, lock not had      BackendUnavailable   no
a value that does not fit; a constraint    ConfigurationError   no
the driver itself refused it, with no code ConfigurationError   no
the driver knew that it was closed         BackendUnavailable   no
the connection was lost; no code           BackendUnavailable   perhaps
any other code of the server's             BackendUnavailable   no
=========================================  ===================  =============

Desks for the row locks of a loop at a database, as long as anybody uses them.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.statements import run_plan_autocommit
from aiorwlock_remote.core.row import CONSTRAINT_HINT, Plan
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.fencing.sql import driver_code
from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.requests import RunsPlans
from aiorwlock_remote.recipes.row_lock.target import RowIdentity
from aiorwlock_remote.runtime.event_loop import current_event_loop

S = TypeVar("S")
T = TypeVar("T")


class PlanRunner(ABC, Generic[S]):
    """Beyond any caller's cancellation."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, plan: Plan[S, T]) -> Pending[T]:
        """As ``SupportsRowLocks.carry``."""
        return run_plan_autocommit(self._begin, plan)

    @abstractmethod
    async def carried(self, plan: Plan[S, T], pending: Pending[T]) -> None:
        """Resolve it, or let it fail."""

    def _begin(self, plan: Plan[S, T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        task = asyncio.get_running_loop().create_task(self.carried(plan, pending))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return pending


SCHEMA = "rwlock schema tells of our own tables; a row lock's are the user's"
GRANT = "GRANT … ON mutex_locks"

# SQLSTATE of PostgreSQL, numbers of MariaDB and MySQL, codes of Oracle.
_TABLES = re.compile(
    "42P01|42703|3F000|42804|42883|22P02|1146|1054|1932|1267|1292|ORA-00942|ORA-00904"
)
_GRANTS = re.compile(
    "42501|25006|1142|1143|1044|1290|1792|1836|ORA-01031|ORA-41900|SQLITE_READONLY"
)
_VALUES = re.compile("22000|22001|22003|22021|1406|1366|1264|1300|ORA-12899|ORA-01722")
_CONSTRAINTS = re.compile(
    "23...|1048|1062|1451|1452|3819|4025|ORA-(00001|01400|02290|02291)|SQLITE_CONSTRAINT"
)
_LOST = re.compile(
    "08...|57P0[1245]|XX...|20[0-9][0-9]|1053|1927|"
    "ORA-0(0028|1012|1013|3113|3114|3135)|DPY-4011|DPY-4024|DPY-1001"
)
_CLOSED = re.compile(r"connection is closed\Z")
"""What asyncpg and psycopg say before they send anything."""
_REFUSALS = {"DataError", "NotSupportedError", "ProgrammingError"}
"""Classes of DB-API, which have a code if it is the server that refused."""
_SQLITE_TABLES = re.compile("no such (table|column)")


def from_driver_codes(
    driver: object, where: str, *, asked: bool = True, lost: bool = False
) -> BackendError | ConfigurationError:
    """The error of ours for what a driver raised for one request.

    ``asked``: whether a statement was handed to it. ``lost``: the connection is known
    to be of no use any more.
    """
    code = driver_code(driver)
    said = f"{where}: {_driver_text(driver)}"
    if _TABLES.fullmatch(code) or _SQLITE_TABLES.match(str(driver)):
        return Unsupported(what=said, hint=SCHEMA, nothing_done=True)
    if _GRANTS.fullmatch(code):
        return Unsupported(what=said, hint=GRANT, nothing_done=True)
    if _VALUES.fullmatch(code):
        return ConfigurationError(what=said)
    if _CONSTRAINTS.fullmatch(code):
        return ConfigurationError(what=said, hint=CONSTRAINT_HINT)
    if not (lost or code) and _REFUSALS & _class_names(driver):
        return ConfigurationError(what=said)
    if not code and _CLOSED.search(str(driver)):
        return BackendUnavailable(what=said, nothing_done=True)
    unknown = lost or not code or _LOST.fullmatch(code) is not None
    return BackendUnavailable(what=said, nothing_done=not asked or not unknown)


def _driver_text(driver: object) -> str:
    text = str(driver).strip()
    if isinstance(getattr(driver, "sqlstate", None), str):
        text = text.partition("\n")[0]  # the details show the user's rows
    return " ".join(text.split()) or type(driver).__name__


def _class_names(driver: object) -> set[str]:
    return {kind.__name__ for kind in type(driver).__mro__}


class RowLockManagers(Generic[S]):
    """Waiters for one row know of each other, however often its lock is made.

    A desk refers to its loop and its database. So neither keeps it, or none of them
    would ever go: its locks, attempts and grants do.
    """

    def __init__(self) -> None:
        """None yet."""
        self._desks: weakref.WeakValueDictionary[
            tuple[int, Hashable], RowLockManager[S]
        ]
        self._desks = weakref.WeakValueDictionary()

    def desk(
        self,
        database: Hashable,
        known: set[RowIdentity],
        carrier: Callable[[], RunsPlans[S]],
    ) -> RowLockManager[S]:
        """That of the running loop. ``known``: kinds of rows; it may learn more.

        ``database`` tells it from others as long as the carrier is there.

        Raises:
            RuntimeError: none of asyncio's is running.
        """
        key = id(asyncio.get_running_loop()), database
        desk = self._desks.get(key)
        if desk is None:
            desk = RowLockManager(carrier(), current_event_loop(), _never_closed, known)
            self._desks[key] = desk
        return desk


def _never_closed() -> None:
    """Connections of the user's may be asked for as long as they are there."""
