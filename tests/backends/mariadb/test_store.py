"""What is there: listed, forgotten, and much of it at a time."""

from __future__ import annotations

import pytest

from aiorwlock_remote import BadRecord, connect
from aiorwlock_remote.core.commands import Granted, Release
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.mariadb.pools import pool_of
from tests.backends.mariadb.products import foreign_mutexes
from tests.cas.tables import ORDER, acquire, opened, orders
from tests.servers.mariadb import run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]
DOORMEN = "SELECT resource_type, resource_id FROM doormans ORDER BY 1, 2"


async def test_more_than_a_page_is_listed(db_tables: str) -> None:
    run(
        db_tables,
        foreign_mutexes(1203),
        "INSERT INTO doormans (resource_type, resource_id, active_readers, version,"
        " record) VALUES ('order', 7, '{}', 'v', 'no record'), ('z', 1, '{}', NULL,"
        " NULL)",
    )
    own, other = connect(db_tables), connect(db_tables)
    async with own as locks, other as others, others.mutex("other", 1):
        shown = [doorman async for doorman in locks.list()]
        assert len(shown) == 1203  # the damaged one is left out
        assert [d.resource_type for d in shown].count("other") == 1
        assert len([d async for d in locks.list("other")]) == 1
    async with connect(db_tables, prefix="or") as locks:
        assert {d.resource_type async for d in locks.list()} == {"der"}


async def test_half_a_doorman_is_no_doorman(db_tables: str) -> None:
    """Nothing is granted because of it, and nobody is notified."""
    async with connect(db_tables, lease=None) as locks:
        lock = locks.mutex("order", 1)
        async with lock:
            pass
        run(db_tables, "UPDATE doormans SET record = NULL")
    async with connect(db_tables, lease=None) as locks:
        lock = locks.mutex("order", 1)
        for _ in range(2):
            with pytest.raises(
                BadRecord, match="its row of doormans has a version but no record"
            ):
                await lock.try_acquire()
        assert run(db_tables, "SELECT * FROM mutex_locks") == []
        run(db_tables, "UPDATE doormans SET version = NULL")
        async with lock:
            pass


async def age(url: str) -> None:
    run(url, "UPDATE doormans SET updated_at = updated_at - INTERVAL 100 SECOND")


async def test_an_unused_doorman_is_forgotten(db_tables: str) -> None:
    name = db_tables.rpartition("/")[2]
    kept, gone = orders(2)
    async with opened(db_tables) as store:
        assert isinstance(await store.step(kept, acquire("t1")), Granted)
        await store.step(gone, acquire("t2"))
        await store.step(gone, Release("t2"))
        await age(db_tables)
        await store.step(ORDER, acquire("t3"))
        await store.forget(99)
    assert run(db_tables, DOORMEN) == [("order", 0), ("order", 42)]
    async with pool_of(db_tables, database=name) as backend:
        host = current_event_loop()
        store = await backend.open(host, lambda *_: None, StoreSettings(client_id="g"))
        await store.step(ORDER, Release("t3"))
        await age(db_tables)
        await store.forget(99)
        await store.aclose()
    assert run(db_tables, DOORMEN) == [("order", 0)]


async def test_five_hundred_readers_at_a_time(db_tables: str) -> None:
    """Their record is packed, and does not fit in where people read."""
    async with opened(db_tables) as store:
        for number in range(500):
            reply = await store.step(
                ORDER, acquire(f"t{number:028}", Mode.READ, lease=None)
            )
            assert isinstance(reply, Granted)
        ((packed,),) = run(db_tables, "SELECT record FROM doormans")
        assert packed.split()[1].startswith("z:")
        async with connect(db_tables) as locks:
            info = await locks.mutex("order", 42).info()
        assert len(info.holders) == 500
