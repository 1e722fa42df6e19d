"""What the row locks of Django and SQLAlchemy share.

What drivers raise, by their codes, and what this library raises instead:

=========================================  ===================  =============
the driver's error                         our error            carried out?
=========================================  ===================  =============
before a statement was sent                BackendUnavailable   no
no such table, column or function; type    Unsupported          no
no right; read-only                        Unsupported          no
deadlock, serialization, lock denied       BackendUnavailable   no
a value that does not fit; a constraint    ConfigurationError   no
refused by the driver, without a code      ConfigurationError   no
the driver knew that it was closed         BackendUnavailable   no
the connection was lost; no code           BackendUnavailable   perhaps
any other code of the server               BackendUnavailable   no
=========================================  ===================  =============
"""

from __future__ import annotations

import asyncio
import logging
import re
import weakref
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from functools import partial
from typing import Any, Generic, TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote._util.statements import run_plan_autocommit
from aiorwlock_remote.cas.renewer import RowRenewer
from aiorwlock_remote.core.row import CONSTRAINT_HINT, MARKS, Plan
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.fencing.sql import driver_code
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import CallbackThread, Capability, StoreBase, StoreSettings
from aiorwlock_remote.recipes.row_lock.acquirer import RowAcquirer
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.requests import RunsPlans
from aiorwlock_remote.recipes.row_lock.target import RowKind, RowTarget, log
from aiorwlock_remote.runtime.event_loop import TaskEventLoop, current_event_loop
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper
from aiorwlock_remote.runtime.store_client import StoreClient

S = TypeVar("S")
T = TypeVar("T")

# SQLSTATE of PostgreSQL, numbers of MariaDB and MySQL, codes of Oracle.
_TABLES = re.compile(
    "42P01|42703|3F000|42804|42883|22P02|1146|1054|1932|1267|ORA-00942|ORA-00904"
)
_GRANTS = re.compile(
    "42501|25006|1142|1143|1044|1290|1792|1836|ORA-01031|ORA-41900|SQLITE_READONLY"
)
_VALUES = re.compile("22000|22001|22003|22021|1406|1366|1264|1300|ORA-12899|ORA-01722")
_CONSTRAINTS = re.compile(
    "23...|1048|1062|1451|1452|3819|4025|ORA-(00001|01400|02290|02291)|SQLITE_CONSTRAINT"
)
_NO_NUMBER = "1292"
# 1180 and 3100: the commit failed, and may have been done in part.
_LOST = re.compile(
    "08...|57P0[1245]|XX...|20[0-9][0-9]|1053|1180|1927|3100|3169|4031|"
    "ORA-0(0028|1012|1013|3113|3114|3135)|DPY-4011|DPY-4024|DPY-1001"
)
_CLOSED = re.compile(r"connection is closed\Z")
"""What asyncpg and psycopg raise before they send anything."""
_REFUSALS = {"DataError", "NotSupportedError", "ProgrammingError"}
"""Exception classes of DB-API; without a code, the driver itself has refused."""
_SQLITE_TABLES = re.compile("no such (table|column)")


def from_driver_codes(
    driver: object, where: str, *, asked: bool = True, lost: bool = False
) -> BackendError | ConfigurationError:
    """Return this library's error for an exception that a database driver raised.

    Args:
        driver: The driver's exception.
        where: The database, for the message.
        asked: True if a statement had been handed to the driver.
        lost: True if the connection is known to be broken.
    """
    code = driver_code(driver)
    text = f"{where}: {_driver_text(driver)}"
    if code == _NO_NUMBER:
        # MariaDB says so of a mark. MySQL also refuses a key that is no number.
        if any(mark in text for mark in MARKS):
            return Unsupported(what=text, nothing_done=True, lacks="tables")
        return ConfigurationError(what=text, refused="value")
    if _TABLES.fullmatch(code) or _SQLITE_TABLES.match(str(driver)):
        return Unsupported(what=text, nothing_done=True, lacks="tables")
    if _GRANTS.fullmatch(code):
        return Unsupported(what=text, nothing_done=True, lacks="rights")
    if _VALUES.fullmatch(code):
        return ConfigurationError(what=text, refused="value")
    if _CONSTRAINTS.fullmatch(code):
        return ConfigurationError(what=text, hint=CONSTRAINT_HINT)
    kinds = {kind.__name__ for kind in type(driver).__mro__}
    if not (lost or code) and _REFUSALS & kinds:
        return ConfigurationError(what=text, refused="value")
    if not code and _CLOSED.search(str(driver)):
        return BackendUnavailable(what=text, nothing_done=True)
    unknown = lost or not code or _LOST.fullmatch(code) is not None
    return BackendUnavailable(what=text, nothing_done=not asked or not unknown)


def _driver_text(driver: object) -> str:
    text = str(driver).strip()
    if isinstance(getattr(driver, "sqlstate", None), str):
        # PostgreSQL's detail lines contain the user's row, which must not get into logs
        # and error messages.
        text = text.partition("\n")[0]
    return " ".join(text.split()) or type(driver).__name__


class PlanRunner(Generic[S]):
    """Runs plans (generators that yield SQL statements) over a user's connections.

    Each plan has its own asyncio task, and continues if the caller is cancelled: a
    statement that is cut off may have been carried out. ``run`` runs one plan and
    raises only ``LockError``; ``timeout``: seconds until a plan is given up; ``where``:
    the database, for messages.
    """

    def __init__(
        self,
        where: str,
        run: Callable[[Plan[S, Any]], Awaitable[Any]],
        *,
        timeout: float | None = None,
    ) -> None:
        self._where = where
        self._run = run
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, plan: Plan[S, T]) -> Pending[T]:
        return run_plan_autocommit(self._begin, plan)

    def _begin(self, plan: Plan[S, T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        task = asyncio.get_running_loop().create_task(self._settle(plan, pending))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return pending

    async def _settle(self, plan: Plan[S, T], pending: Pending[T]) -> None:
        running = asyncio.ensure_future(self._run(plan))
        try:
            await asyncio.wait({running}, timeout=self._timeout)
        except asyncio.CancelledError:
            # The loop ends: without an outcome the caller's own clean-up would wait for
            # the loop, and the loop for the clean-up.
            running.cancel()
            pending.set_exception(self._unavailable("the event loop ended"))
            raise
        if not running.done():
            log_event(log, "request_timed_out", logging.DEBUG, database=self._where)
            running.cancel()
            pending.set_exception(
                self._unavailable(f"did not answer within {self._timeout} s")
            )
        elif running.cancelled():
            # A driver that cancels the statement itself, which may have been carried
            # out (test_a_driver_that_is_cancelled).
            pending.set_exception(self._unavailable("the statement was cancelled"))
        elif (error := running.exception()) is not None:
            pending.set_exception(error)
        else:
            pending.set_result(running.result())

    def _unavailable(self, what: str) -> BackendUnavailable:
        return BackendUnavailable(what=f"{self._where}: {what}")


def _wake_no_waiter(*_: object) -> None:
    """Ignore what a store says of its resources."""


class PlanStore(StoreBase):
    """Store for row locks alone: runs plans, and renews over the caller's loop.

    Its renewals are late if that loop is blocked, as the connections belong to it.
    """

    capabilities: Capability = (
        Capability.MANY_PROCESSES | Capability.MANY_HOSTS | Capability.ROW_LOCKS
    )

    def __init__(self, runner: RunsPlans[Any], loop: TaskEventLoop) -> None:
        # Row locks have waiters of their own, which no store wakes.
        super().__init__(loop, _wake_no_waiter, StoreSettings(client_id=""))
        self._runner = runner

    def carry(self, plan: Plan[Any, T]) -> Pending[T]:
        return self._runner.carry(plan)

    def renewer(self) -> RowRenewer:
        thread = CallbackThread(self.event_loop.clock)

        def carry(plan: Plan[Any, Any]) -> Pending[Any]:
            pending: Pending[Any] = Pending()
            self.event_loop.call_soon(send, plan, pending)
            return pending

        def send(plan: Plan[Any, Any], pending: Pending[Any]) -> None:
            answered = partial(thread.call_soon, settle, pending)
            self._runner.carry(plan).add_done_callback(answered)

        return RowRenewer(thread, carry)


def settle(pending: Pending[T], reply: Pending[T]) -> None:
    """Set the result or the error of ``pending`` to that of ``reply``, which came."""
    if reply.error is not None:
        pending.set_exception(reply.error)
    else:
        pending.set_result(reply.result())


class RowSession(Session, Generic[S]):
    """``Session`` of the row locks of one event loop and database."""

    def __init__(
        self, client: StoreClient, runner: RunsPlans[S], checked: set[RowKind]
    ) -> None:
        super().__init__(client)
        self.rows: RowAcquirer[S] = RowAcquirer(client, runner, checked)


class RowSessions(Generic[S]):
    """Contains one ``RowSession`` for each event loop and database.

    So all locks of one row in a process share its waiters, however often ``row_lock``
    is called. Only the locks, attempts and grants of a session keep it alive: a strong
    reference here would keep its loop and engine for ever
    (test_engines_and_loops_that_ended_are_forgotten).

    Args:
        library: Name of the library whose connections are used, for an error.
        hint: What to do outside of asyncio, for the same error.
        checked_kinds: By database, the tables and columns that are known to store lock
            marks untruncated. More are added.
    """

    def __init__(
        self, library: str, hint: str, checked_kinds: MutableMapping[Any, set[RowKind]]
    ) -> None:
        self._library = library
        self._hint = hint
        self._checked_kinds = checked_kinds
        self._sessions: weakref.WeakValueDictionary[
            tuple[int, str | int], RowSession[S]
        ]
        self._sessions = weakref.WeakValueDictionary()

    def lock(
        self,
        row: RowTarget[S],
        database: Hashable,
        make_runner: Callable[[], RunsPlans[S]],
    ) -> RowLock:
        """Return the lock of ``row`` in ``database``, for the running asyncio loop.

        ``make_runner``: returns what runs the SQL; called if none of its locks exists.
        Raise ``ConfigurationError`` outside of asyncio.
        """
        try:
            loop = id(asyncio.get_running_loop())
        except RuntimeError:
            raise ConfigurationError(
                what=f"a row lock of {self._library} was made outside of an asyncio "
                "loop",
                hint=self._hint,
            ) from None
        # Not the engine itself, which the key would keep alive.
        key = loop, database if isinstance(database, str) else id(database)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._new_session(database, make_runner())
        return RowLock(session, session.rows, row)

    def _new_session(self, database: Hashable, runner: RunsPlans[S]) -> RowSession[S]:
        loop = current_event_loop()
        client = StoreClient(loop, StoreSettings(client_id=random_id().hex()))
        client.use(PlanStore(runner, loop))
        checked = self._checked_kinds.setdefault(database, set())
        session = RowSession(client, runner, checked)
        # The connections belong to the user, and only the user closes them; what ends
        # with the last lock is the keeper's thread. Weak: the thread has the keeper.
        ended = weakref.finalize(session, _end_keeper, weakref.ref(client.keeper))
        ended.atexit = False
        return session


def _end_keeper(found: weakref.ref[LeaseKeeper]) -> None:
    keeper = found()
    if keeper is not None:
        keeper.close_in_thread()
