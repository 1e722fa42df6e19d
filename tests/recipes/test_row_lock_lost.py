"""Leased row locks whose requests are lost, and whose tasks do not wait for more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import BackendError, BackendUnavailable, Closed, Locks, connect
from aiorwlock_remote._util.pending import Pending, map_pending
from aiorwlock_remote.backends.mariadb.store import MariadbStore, MysqlStore
from aiorwlock_remote.backends.postgresql.store import PostgresqlStore
from aiorwlock_remote.backends.sqlite.store import SqliteStore
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.errors import AcquireUncertain, Unsupported
from aiorwlock_remote.recipes import RowLock
from tests.backends.redis.connections import eventually
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, LOCKED, MODES, ask

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no socket has a part in it"),
]


class Trouble:
    """The first answer is lost; after that nothing arrives until it is over."""

    def __init__(self, carry: Callable[..., Pending[Any]]) -> None:
        self._carry = carry
        self.requests = 0
        self.over = False
        self.silent = False
        self.unanswered: list[Pending[Any]] = []

    def carry(self, store: SqliteStore, plan: Plan[Statement, Any]) -> Pending[Any]:
        if self.over:
            return self._carry(store, plan)
        self.requests += 1
        if self.requests == 1:
            return map_pending(self._carry(store, plan), lost)
        failed: Pending[Any] = Pending()
        self.unanswered.append(failed)
        if not self.silent:
            self.fail()
        return failed

    def fail(self, error: BackendError | None = None) -> None:
        for pending in self.unanswered:
            not_sent = BackendUnavailable(what="not sent", nothing_done=True)
            pending.set_exception(error or not_sent)
        self.unanswered.clear()


def begun(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    trouble = Trouble(SqliteStore.carry)

    def carry(store: SqliteStore, plan: Plan[Statement, Any]) -> Pending[Any]:
        return trouble.carry(store, plan)

    monkeypatch.setattr(SqliteStore, "carry", carry)
    return trouble


def lost(_: object) -> None:
    raise BackendUnavailable(what="no answer")


@asynccontextmanager
async def unlucky(
    sqlite: LocksSite, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Locks, RowLock, Trouble]]:
    """A row whose next request is unheard; in the end nobody has it."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=600)
        await lock.look()
        yield locks, lock, begun(monkeypatch)
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
    sqlite: LocksSite, monkeypatch: pytest.MonkeyPatch, mode: str, how: str
) -> None:
    async with (
        unlucky(sqlite, monkeypatch) as (locks, lock, trouble),
        anyio.create_task_group() as group,
    ):

        async def take() -> None:
            with suppress(Closed):
                await ask(lock, mode)()

        group.start_soon(take)
        await eventually(lambda: trouble.requests > 1, "it tries again")
        assert sqlite.plain.state() == LOCKED[mode]
        trouble.over = True
        if how == "cancelled":
            group.cancel_scope.cancel()
        else:
            await locks.aclose()


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_under_another_try(
    sqlite: LocksSite, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """That one obtained nothing, but the one before did."""
    async with unlucky(sqlite, monkeypatch) as (_, lock, trouble):
        trouble.silent = True
        scope = anyio.CancelScope()

        async def take() -> None:
            with scope:
                await ask(lock, mode)()

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await eventually(lambda: bool(trouble.unanswered), "it tries again")
            scope.cancel()
            await checkpoint()
            trouble.over = True
            trouble.fail()


@pytest.mark.parametrize("mode", MODES)
async def test_another_try_that_is_refused(
    sqlite: LocksSite, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Rights were taken away meanwhile, say: what was obtained before is given back."""
    async with unlucky(sqlite, monkeypatch) as (_, lock, trouble):
        trouble.silent = True

        async def take() -> None:
            with pytest.raises(Unsupported):
                await ask(lock, mode)()

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await eventually(lambda: bool(trouble.unanswered), "it tries again")
            trouble.over = True
            trouble.fail(Unsupported(what="no rights"))
