"""Leased row locks whose requests are lost, and whose tasks do not wait for more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import BackendError, BackendUnavailable, Closed, Locks, connect
from aiorwlock_remote._util.pending import Pending, map_pending
from aiorwlock_remote.backends.mariadb.store import MariadbStore, MysqlStore
from aiorwlock_remote.backends.postgresql.store import PostgresqlStore
from aiorwlock_remote.backends.sqlite.store import SqliteStore
from aiorwlock_remote.core.row import Plan, RowStep, Statement
from aiorwlock_remote.errors import AcquireUncertain, Unsupported
from aiorwlock_remote.recipes import RowLock
from aiorwlock_remote.recipes.row_lock.target import RowOutcome
from aiorwlock_remote.runtime import cleanup
from tests.backends.redis.connections import eventually
from tests.recipes.fix_rows import LocksSite, port_of, through
from tests.recipes.row_sites import FREE, LOCKED, MODES, THEIRS, ask, never_look_again
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no socket has a part in it"),
]


LEASE = 600.0
LEASES = [None, LEASE]

NOT_SENT = BackendUnavailable(what="not sent", nothing_done=True)
NO_RIGHT = Unsupported(what="no right", nothing_done=True)
LOST = BackendUnavailable(what="no answer")


@dataclass
class Fault:
    """What requests fail with, before they are sent or, if that is lost, afterwards."""

    carry: Callable[..., Pending[Any]]
    error: BackendError | None = None
    once: BackendError | None = None
    """What the next request alone fails with."""
    requests: int = 0
    hanging: bool = False
    hung: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def carried(self, store: SqliteStore, plan: Plan[Statement, Any]) -> Pending[Any]:
        self.requests += 1
        if self.once is LOST:
            self.once = None
            return map_pending(self.carry(store, plan), lost)
        if self.hanging:
            late: Pending[Any] = Pending()
            self.hung.append(lambda: late.set_exception(self.error or NOT_SENT))
            return late
        if self.error is None:
            return self.carry(store, plan)
        if self.error is LOST:
            return map_pending(self.carry(store, plan), lost)
        failed: Pending[Any] = Pending()
        failed.set_exception(self.error)
        return failed

    def is_over(self, error: BackendError | None = None) -> None:
        """From now on requests arrive; those that hang fail with this error."""
        self.error, self.hanging = error, False
        for fail in self.hung:
            fail()
        self.error = None


def lost(_: object) -> None:
    raise LOST


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Callers wait for one repetition of a release that failed."""
    fault = Fault(SqliteStore.carry)

    def carry(store: SqliteStore, plan: Plan[Statement, Any]) -> Pending[Any]:
        return fault.carried(store, plan)

    monkeypatch.setattr(SqliteStore, "carry", carry)
    monkeypatch.setattr(cleanup, "MAX_RETRIES", 1)
    return fault


@asynccontextmanager
async def unlucky(
    sqlite: LocksSite, fault: Fault
) -> AsyncIterator[tuple[Locks, RowLock]]:
    """A row whose next request is unheard; in the end nobody has it."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=LEASE)
        await lock.look()
        fault.once, fault.error = LOST, NOT_SENT
        yield locks, lock
        await eventually(lambda: sqlite.plain.state() == FREE, "given back")


def cut_off(plan: Plan[Statement, Any]) -> Plan[Statement, Any]:
    """What comes after the first of its statements that changes rows is lost."""
    statement = next(plan)
    while not (ran := (yield statement)).count:
        statement = plan.send(ran)
    plan.send(ran)
    raise BackendUnavailable(what="closed", nothing_done=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "store", "error"),
    [
        ("sqlite", SqliteStore, BackendUnavailable),  # a plan is a transaction
        ("postgresql", PostgresqlStore, AcquireUncertain),
        ("mariadb", MariadbStore, AcquireUncertain),
        ("mysql", MysqlStore, AcquireUncertain),
    ],
)
async def test_locked_and_not_looked_at(
    name: str,
    store: type[Any],
    error: type[Exception],
    mode: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That nothing was done is true of the last statement, not of those before."""
    site: LocksSite = request.getfixturevalue(name)
    carry = store.carry
    monkeypatch.setattr(store, "carry", lambda self, plan: carry(self, cut_off(plan)))
    async with connect(site.url) as locks:
        with pytest.raises(error):
            await ask(locks.row_lock("invoices", 1), mode)(timeout=0)
        free = error is BackendUnavailable
        assert site.plain.state() == (FREE if free else LOCKED[mode])


@pytest.mark.parametrize("how", ["cancelled", "closed"])
@pytest.mark.parametrize("mode", MODES)
async def test_who_stops_trying_gives_back_what_it_may_have(
    sqlite: LocksSite, fault: Fault, mode: str, how: str
) -> None:
    async with (
        unlucky(sqlite, fault) as (locks, lock),
        anyio.create_task_group() as group,
    ):

        async def take() -> None:
            with suppress(Closed):
                await ask(lock, mode)()

        group.start_soon(take)
        await eventually(times(fault, 2), "it tries again")
        assert sqlite.plain.state() == LOCKED[mode]
        fault.is_over()
        if how == "cancelled":
            group.cancel_scope.cancel()
        else:
            await locks.aclose()


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_under_another_try(
    sqlite: LocksSite, fault: Fault, mode: str
) -> None:
    """That one obtained nothing, but the one before did."""
    async with unlucky(sqlite, fault) as (_, lock):
        fault.hanging = True
        scope = anyio.CancelScope()

        async def take() -> None:
            with scope:
                await ask(lock, mode)()

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await eventually(lambda: bool(fault.hung), "it tries again")
            scope.cancel()
            await checkpoint()
            fault.is_over()


@pytest.mark.parametrize("mode", MODES)
async def test_another_try_that_is_refused(
    sqlite: LocksSite, fault: Fault, mode: str
) -> None:
    """Rights were taken away meanwhile, say: what was obtained before is given back."""
    async with unlucky(sqlite, fault) as (_, lock):
        fault.hanging = True

        async def take() -> None:
            with pytest.raises(Unsupported):
                await ask(lock, mode)()

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await eventually(lambda: bool(fault.hung), "it tries again")
            fault.is_over(NO_RIGHT)


# ------------------------------------------------------------------------------
# Row locks that could not be given back, and are, once the database can be reached.


async def is_freed(sqlite: LocksSite, key: int = 1) -> None:
    await eventually(lambda: sqlite.plain.state(key) == FREE, "given back")


def times(fault: Fault, number: int) -> Callable[[], bool]:
    """So many requests from now on."""
    until = fault.requests + number
    return lambda: fault.requests >= until


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [NOT_SENT, NO_RIGHT])
async def test_a_release_that_did_not_arrive(
    sqlite: LocksSite,
    fault: Fault,
    mode: str,
    lease: float | None,
    error: BackendError,
) -> None:
    """It arrives when the database is there again; tasks that wait get an error."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=lease)
        held = await ask(lock, mode)()
        fault.error = error
        with pytest.raises(type(error)):
            await held.release()
        await eventually(times(fault, 3), "asked again")
        assert sqlite.plain.state() == LOCKED[mode]
        fault.error = None
        await is_freed(sqlite)


@pytest.mark.parametrize("mode", MODES)
async def test_a_release_whose_answers_are_lost(
    sqlite: LocksSite, fault: Fault, mode: str
) -> None:
    """By its ticket it is repeated, and takes nothing from who came afterwards."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=LEASE)
        held = await ask(lock, mode)()
        fault.error = LOST
        with pytest.raises(BackendUnavailable):
            await held.release()
        await is_freed(sqlite)
        sqlite.plain.step(THEIRS[mode][0])
        await eventually(times(fault, 3), "asked again")
        fault.error = None
        await eventually(times(fault, 1), "asked, and answered")
        await lock.look()
        asked = fault.requests
        await anyio.sleep(0.3)
        assert fault.requests == asked
        assert sqlite.plain.state() == LOCKED[mode]
        sqlite.plain.step(THEIRS[mode][1])


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_lease_nothing_is_done_twice(
    sqlite: LocksSite, fault: Fault, mode: str
) -> None:
    """A release that may have been carried out would be another program's."""
    async with connect(sqlite.url) as locks:
        first, other = locks.row_lock("invoices", 1), locks.row_lock("invoices", 2)
        held, too = await ask(first, mode)(), await ask(other, mode)()
        fault.error = LOST
        with pytest.raises(BackendUnavailable, match="perhaps not given back"):
            await held.release()
        sqlite.plain.step(THEIRS[mode][0])
        fault.error = NOT_SENT
        with pytest.raises(BackendUnavailable, match="was not given back") as caught:
            await too.release()
        assert "in the background" in caught.value.hint
        fault.error = LOST
        await is_freed(sqlite, 2)  # asked again once, for this one alone
        asked = fault.requests
        fault.error = NOT_SENT
        too = await obtained(fault, other, mode)
        with pytest.raises(BackendUnavailable):
            await too.release()
        await eventually(lambda: fault.requests >= asked + 4, "that one, again")
        fault.error = None
        await is_freed(sqlite, 2)
        assert sqlite.plain.state(1) == LOCKED[mode]
        sqlite.plain.step(THEIRS[mode][1])


async def obtained(fault: Fault, lock: RowLock, mode: str) -> Any:  # noqa: ANN401
    error, fault.error = fault.error, None
    held = await ask(lock, mode)()
    fault.error = error
    return held


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_acquire(
    sqlite: LocksSite, fault: Fault, mode: str, lease: float | None
) -> None:
    """It was granted, and could not be taken back at once."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=lease)
        async with ask(lock, mode)():
            pass
        carry, granted = fault.carry, Pending[Any]()

        def held_back(store: SqliteStore, plan: Plan[Statement, Any]) -> Pending[Any]:
            fault.error = NOT_SENT
            carry(store, plan).add_done_callback(answers.append)
            return granted

        async def take() -> None:
            await ask(lock, mode)()

        answers: list[Pending[Any]] = []
        fault.carry = held_back
        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await eventually(lambda: bool(answers), "granted")
            assert sqlite.plain.state() == LOCKED[mode]
            group.cancel_scope.cancel()
            granted.set_result(answers[0].result())
        await eventually(times(fault, 2), "asked again")
        assert sqlite.plain.state() == LOCKED[mode]
        fault.carry, fault.error = carry, None
        await is_freed(sqlite)


@pytest.mark.parametrize("lease", LEASES)
async def test_closing_asks_once_more(
    sqlite: LocksSite, fault: Fault, lease: float | None
) -> None:
    """But no second time for what has no ticket and is being asked for."""
    async with connect(sqlite.url) as locks:
        held = await locks.row_lock("invoices", 1, lease=lease).write()
        too = await locks.row_lock("invoices", 2, lease=lease).write()
        fault.error = NOT_SENT
        with pytest.raises(BackendUnavailable):
            await held.release()
        fault.hanging = True
        await eventually(lambda: bool(fault.hung), "asked again")
        fault.hanging = False
        with pytest.raises(BackendUnavailable):
            await too.release()
        fault.error, asked = None, fault.requests
        async with anyio.create_task_group() as group:
            group.start_soon(locks.aclose)
            await is_freed(sqlite, 2)
            fault.hung[0]()
    again = fault.requests - asked
    assert again == (1 if lease is None else 2)
    assert sqlite.plain.state() == (LOCKED["write"] if lease is None else FREE)


@pytest.mark.parametrize("mode", MODES)
async def test_a_database_that_is_restarted(
    postgresql: LocksSite, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It takes longer than a caller waits; no lease has to be waited for."""
    monkeypatch.setattr(cleanup, "MAX_RETRIES", 1)
    with Proxy(port_of(postgresql.url)) as proxy:
        async with connect(through(proxy, postgresql.url)) as locks:
            held = await ask(locks.row_lock("invoices", 1, lease=LEASE), mode)()
            proxy.refuse()
            proxy.cut_after(0, to="server")
            with pytest.raises(BackendUnavailable):
                await held.release()
            assert postgresql.plain.state() == LOCKED[mode]
            proxy.accept()
            await is_freed(postgresql)


async def test_waiters_are_notified(
    sqlite: LocksSite, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same process, when it was given back in the background."""
    never_look_again(monkeypatch)
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=LEASE)
        held = await lock.write()
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with anyio.fail_after(20):
                    async with lock.write():
                        pass

            asked = times(fault, 2)
            group.start_soon(wait)
            await eventually(asked, "it waits")
            await lock.look()
            fault.error = NOT_SENT
            with pytest.raises(BackendUnavailable):
                await held.release()
            fault.error = None


async def test_a_row_that_others_change_all_the_time(
    sqlite: LocksSite, fault: Fault
) -> None:
    """It is not lost: it could not be given back yet."""
    async with connect(sqlite.url) as locks:
        held = await locks.row_lock("invoices", 1, lease=LEASE).write()
        carry, found = fault.carry, RowOutcome(RowStep(0), held=False, again=True)

        def outrun(_: SqliteStore, __: Plan[Statement, Any]) -> Pending[Any]:
            known: Pending[Any] = Pending()
            known.set_result(found)
            return known

        fault.carry = outrun
        with pytest.raises(BackendUnavailable) as caught:
            await held.release()
        assert caught.value.nothing_done
        fault.carry = carry
        await is_freed(sqlite)
