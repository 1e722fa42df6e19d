"""Renewals of many grants share transactions; what refuses one fails no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import anyio.to_thread
import pytest

from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.postgresql.driver import PostgresqlExecutor
from aiorwlock_remote.cas import RowLocked, server_time, stepper
from aiorwlock_remote.cas.driver import executor as executors
from aiorwlock_remote.cas.driver.executor import RENEWALS_PER_COMMIT, DriverExecutor
from aiorwlock_remote.cas.driver.store import TableStore
from aiorwlock_remote.cas.server_time import MAX_SLACK
from aiorwlock_remote.cas.table_cas import StoredRow, Values, dump_record
from aiorwlock_remote.core.commands import Granted, NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendError, BadRecord
from aiorwlock_remote.ports import Renewal, RenewerBase
from tests.cas.tables import LEASE, acquire, opened, orders
from tests.servers.plain import PlainMariadb, PlainPostgresql

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
]

Connected = Callable[[], AbstractContextManager[Any]]
TIMEOUT = 20.0
COUNT = 5
DAMAGE = "UPDATE doormans SET record = 'no', version = 'x' WHERE resource_id = 3"
TAKEN = [
    "DELETE FROM mutex_locks WHERE resource_id = 3",
    "UPDATE mutex_locks SET ticket = 'theirs' WHERE resource_id = 3",
    "UPDATE mutex_locks SET acquired_at = '2001-01-01' WHERE resource_id = 3",
]
LOCKED = "SELECT * FROM {} WHERE resource_type = 'order' AND resource_id = 3 FOR UPDATE"
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'no'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON doormans FOR EACH ROW
  WHEN (OLD.resource_id = 3) EXECUTE FUNCTION refuse();
"""
REFUSE_THERE = """
CREATE TRIGGER refuse BEFORE UPDATE ON doormans FOR EACH ROW
  IF OLD.resource_id = 3 THEN SIGNAL SQLSTATE '45000'; END IF
"""


class Site:
    """A database: its URL, another program's way to it, and what carries requests."""

    def __init__(
        self, url: str, connected: Connected, executor: type[DriverExecutor]
    ) -> None:
        self.url = url
        self.connected = connected
        self.executor = executor

    def run(self, statement: str) -> None:
        with self.connected() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            connection.commit()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stands still, a swap would come late, and be sent again."""
    monkeypatch.setattr(server_time, "MIN_SLACK", MAX_SLACK)


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def site(request: pytest.FixtureRequest) -> Site:
    if request.param == "postgresql":
        url: str = request.getfixturevalue("tables")
        return Site(url, PlainPostgresql(url, "").connected, PostgresqlExecutor)
    url = request.getfixturevalue(f"{request.param}_tables")
    return Site(url, PlainMariadb(url, "").connected, MariadbExecutor)


@asynccontextmanager
async def renewed(store: TableStore) -> AsyncIterator[RenewerBase]:
    renewer = store.renewer()
    yield renewer
    await anyio.to_thread.run_sync(renewer.close)


async def held(store: TableStore, count: int = COUNT) -> list[Renewal]:
    """Take so many mutexes; return the batch that renews them."""
    names = orders(count)
    for name in names:
        assert isinstance(await store.step(name, acquire("t")), Granted)
    return [Renewal(name, "t", LEASE) for name in names]


async def renew(renewer: RenewerBase, batch: list[Renewal]) -> list[object]:
    return list(await anyio.to_thread.run_sync(renewer.renew, batch, TIMEOUT))


async def kinds(store: TableStore, batch: list[Renewal]) -> list[type]:
    """The types of the outcomes."""
    async with renewed(store) as renewer:
        return [type(outcome) for outcome in await renew(renewer, batch)]


@pytest.fixture
def sent(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many swaps went in each request that renews."""
    counts: list[int] = []
    swap, renew = site.executor.swap, site.executor.renew

    async def counted_swap(
        self: DriverExecutor, values: Values, connection: object
    ) -> StoredRow:
        counts.append(1)
        return await swap(self, values, connection)

    async def counted_renew(
        self: DriverExecutor, rows: list[Values], connection: object
    ) -> Any:  # noqa: ANN401 - the answers
        counts.append(len(rows))
        return await renew(self, rows, connection)

    monkeypatch.setattr(site.executor, "swap", counted_swap)
    monkeypatch.setattr(site.executor, "renew", counted_renew)
    return counts


async def test_many_are_a_few_transactions(site: Site, sent: list[int]) -> None:
    many = 2 * RENEWALS_PER_COMMIT + 20
    async with opened(site.url) as store:
        batch = await held(store, many)
        expiries: list[int] = []
        async with renewed(store) as renewer:
            for _ in range(2):
                latest = max(expiries, default=0)
                sent.clear()
                outcomes = await renew(renewer, batch)
                assert sorted(sent) == [20, RENEWALS_PER_COMMIT, RENEWALS_PER_COMMIT]
                grants = [one for one in outcomes if isinstance(one, Grant)]
                expiries = [grant.expires or 0 for grant in grants]
                assert len(expiries) == many
                assert min(expiries) > latest
        # The store has what was answered.
        for one, expiry in zip(batch, expiries, strict=True):
            (grant,) = (await store.look(one.resource)).record.grants
            assert grant.expires == expiry


async def test_none_is_read_again(
    site: Site, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: what is renewed is remembered."""
    monkeypatch.setattr(stepper, "CACHE_SIZE", 2)
    looks: list[Values] = []
    look = site.executor.look

    async def counted(
        self: DriverExecutor,
        values: Values,
        connection: Any,  # noqa: ANN401 - the driver's
        *before: str,
    ) -> StoredRow:
        looks.append(values)
        return await look(self, values, connection, *before)

    async with opened(site.url) as store:
        batch = await held(store)
        async with renewed(store) as renewer:
            await renew(renewer, batch)
            monkeypatch.setattr(site.executor, "look", counted)
            sent.clear()
            await renew(renewer, batch)
    assert (sent, looks) == ([COUNT], [])


async def test_large_records_are_fewer(
    site: Site, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(site.url) as store:
        batch = await held(store)
        record = (await store.look(batch[0].resource)).record
        size = len(dump_record(record, begins=False))
        monkeypatch.setattr(executors, "BYTES_PER_COMMIT", round(2.5 * size))
        sent.clear()
        assert await kinds(store, batch) == [Grant] * COUNT
        assert sorted(sent) == [1, 2, 2]


async def test_readers_and_grants_without_an_end(site: Site) -> None:
    async with opened(site.url) as store:
        batch = await held(store)
        shared, endless = orders(COUNT + 2)[COUNT:]
        for ticket in "ab":
            await store.step(shared, acquire(ticket, Mode.READ))
            batch.append(Renewal(shared, ticket, LEASE))
        await store.step(endless, acquire("t", lease=None))
        batch.append(Renewal(endless, "t", None))
        assert await kinds(store, batch) == [Grant] * (COUNT + 3)


async def test_a_damaged_record(site: Site) -> None:
    async with opened(site.url) as store:
        batch = await held(store)
        site.run(DAMAGE)
        found = await kinds(store, batch)
        assert found == [Grant, Grant, Grant, BadRecord, Grant]


@pytest.mark.parametrize("change", TAKEN, ids=["deleted", "replaced", "moved"])
async def test_a_mutex_that_another_program_has_taken(site: Site, change: str) -> None:
    async with opened(site.url) as store:
        batch = await held(store)
        site.run(change)
        found = await kinds(store, batch)
        assert found == [Grant, Grant, Grant, NotHeld, Grant]


@pytest.mark.parametrize("table", ["doormans", "mutex_locks"])
async def test_a_row_that_another_program_has_locked(site: Site, table: str) -> None:
    """Nobody waits for a doorman's row. The mutex row is only read."""
    async with opened(site.url) as store:
        batch = await held(store)
        with site.connected() as connection, connection.cursor() as cursor:
            if hasattr(connection, "begin"):
                connection.begin()
            cursor.execute(LOCKED.format(table))
            assert cursor.fetchone()
            found = await kinds(store, batch)
            connection.rollback()
        expected = RowLocked if table == "doormans" else Grant
        assert found == [Grant, Grant, Grant, expected, Grant]


async def test_a_row_that_another_process_has_changed(site: Site) -> None:
    """Its version is another: that one is sent alone, from what is stored now."""
    async with opened(site.url) as store, opened(site.url) as another:
        batch = await held(store)
        shared = orders(COUNT + 1)[-1]
        await store.step(shared, acquire("ours", Mode.READ))
        batch.append(Renewal(shared, "ours", LEASE))
        async with renewed(store) as renewer:
            assert len(await renew(renewer, batch)) == COUNT + 1
            await another.step(shared, acquire("x", Mode.READ))
            outcomes = await renew(renewer, batch)
        assert [type(outcome) for outcome in outcomes] == [Grant] * (COUNT + 1)
        grants = (await store.look(shared)).record.grants
        assert {grant.ticket for grant in grants} == {"ours", "x"}


async def test_what_the_server_refuses(site: Site) -> None:
    """The transaction of many fails, as each would; the others are sent alone."""
    async with opened(site.url) as store:
        batch = await held(store)
        here = site.executor is PostgresqlExecutor
        site.run(REFUSE if here else REFUSE_THERE)
        found = await kinds(store, batch)
        assert found[:3] + found[4:] == [Grant] * 4
        assert issubclass(found[3], BackendError)
