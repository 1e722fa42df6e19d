"""The store on the tables, and what other programs do to them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from secrets import token_hex

import anyio
import oracledb
import pytest

from aiorwlock_remote import BackendError, ConfigurationError, connect
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable, BadRecord
from aiorwlock_remote.ports import Renewal
from tests.backends.oracle.programs import run, seats
from tests.cas.tables import LEASE, ORDER, acquire, opened, orders
from tests.servers.oracle.client import OracleUser

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("asyncio does it")]


async def test_the_published_columns(user: OracleUser) -> None:
    async with connect(user.url) as locks:
        async with locks.mutex("order", 42) as held:
            ((kind, number, ticket),) = seats(user)
            assert (kind, number) == ("order", 42)
            assert ticket
            rows = run(
                user,
                "SELECT active_readers, has_pending_writer, pending_writer,"
                " updated_at, created_at FROM doormans",
            )
            readers, waits, writer, updated, created = rows[0]
            assert (readers, waits, writer) == ("{}", 0, None)
            assert updated >= created
            since = updated - datetime(1970, 1, 1)  # noqa: DTZ001 - Oracle's is naive
            assert held.fence == since // timedelta(microseconds=1)
        assert seats(user) == []


async def test_readers_are_shown(user: OracleUser) -> None:
    async with connect(user.url) as locks, connect(user.url) as others:
        lock = others.rwlock("catalog", 7).writer

        async def wait() -> None:
            await lock.acquire(timeout=20)

        reading = locks.rwlock("catalog", 7).reader
        async with reading, anyio.create_task_group() as group:
            group.start_soon(wait)
            while not (await lock.info()).queue:  # noqa: ASYNC110 - from outside
                await anyio.sleep(0.01)
            ((readers, waits, writer),) = run(
                user,
                "SELECT active_readers, has_pending_writer, pending_writer"
                " FROM doormans",
            )
            assert len(json.loads(readers)) == 1
            assert waits == 1
            assert writer
            group.cancel_scope.cancel()


async def test_a_published_insert_and_ours_exclude_each_other(user: OracleUser) -> None:
    insert = (
        "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
        " VALUES ('order', 42, 'theirs')"
    )
    async with connect(user.url) as locks:
        async with locks.mutex("order", 42):
            with pytest.raises(oracledb.IntegrityError, match="ORA-00001"):
                run(user, insert)
        run(user, insert)
        assert await locks.mutex("order", 42).try_acquire() is None
        assert await locks.rwlock("order", 42).reader.try_acquire() is None
        run(user, "DELETE FROM mutex_locks WHERE ticket = 'theirs'")
        async with locks.mutex("order", 42).acquire(timeout=0):
            pass


async def test_an_insert_that_is_not_committed(user: OracleUser) -> None:
    """Ours waits for it no longer than ``call_timeout``, and holds nothing then."""
    async with opened(f"{user.url}?call_timeout=1") as store:
        with oracledb.connect(**user.login) as connection:
            connection.cursor().execute(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES ('order', 42, 'theirs')"
            )
            with pytest.raises(BackendUnavailable) as caught:
                await store.step(ORDER, acquire("ours"))
            assert not caught.value.nothing_done
            connection.commit()
        assert isinstance(await store.step(ORDER, acquire("ours")), Refused)
        run(user, "DELETE FROM mutex_locks")
        assert isinstance(await store.step(ORDER, acquire("ours")), Granted)


async def test_an_insert_that_is_taken_back(user: OracleUser) -> None:
    """Then ours, which waited for it, is carried out."""
    async with opened(user.url) as store:
        with oracledb.connect(**user.login) as connection:
            connection.cursor().execute(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES ('order', 42, 'theirs')"
            )
            asked = store.step(ORDER, acquire("ours"))
            while not user.waiting():  # noqa: ASYNC110 - seen from outside
                await anyio.sleep(0.01)
            connection.rollback()
        assert isinstance(await asked, Granted)


async def test_a_fence_is_the_rows_time_and_rises(user: OracleUser) -> None:
    """Whatever is deleted: a new row's fences are above those of the old one."""
    last = 0
    async with connect(user.url) as locks, connect(user.url) as others:
        for round_ in range(12):
            source = (locks, others)[round_ % 2]
            async with source.mutex("order", 42) as held:
                assert held.fence > last
                last = held.fence
            if round_ % 3 == 2:
                run(user, "DELETE FROM doormans")


async def test_a_damaged_record_is_reported_and_kept(user: OracleUser) -> None:
    async with opened(user.url) as store:
        held = await store.step(ORDER, acquire("ours"))
        assert isinstance(held, Granted)
        run(user, "UPDATE doormans SET record = 'no JSON', version = 'theirs'")
        with pytest.raises(BadRecord):
            await store.step(ORDER, Release("ours"))
        assert run(user, "SELECT version FROM doormans") == [("theirs",)]
        snapshots = [found async for found in store.scan(None)]
        assert snapshots == []  # and reported in the log


async def test_one_damaged_record_costs_the_others_nothing(user: OracleUser) -> None:
    async with opened(user.url) as store:
        names = orders(5)
        for name in names:
            await store.step(name, acquire("t"))
        damage = "UPDATE doormans SET record = 'no', version = 'x'"
        run(user, f"{damage} WHERE resource_id = 3")
        renewer = store.renewer()
        batch = [Renewal(name, "t", LEASE) for name in names]
        outcomes = await anyio.to_thread.run_sync(renewer.renew, batch, 20.0)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Grant, Grant, Grant, BadRecord, Grant]
        await anyio.to_thread.run_sync(renewer.close)


async def test_a_renewal_of_what_is_gone(user: OracleUser) -> None:
    async with opened(user.url) as store:
        await store.step(ORDER, acquire("t"))
        run(user, "DELETE FROM mutex_locks")
        renewer = store.renewer()
        batch = [Renewal(ORDER, "t", LEASE)]
        outcomes = await anyio.to_thread.run_sync(renewer.renew, batch, 20.0)
        assert outcomes == [NotHeld("forced")]
        await anyio.to_thread.run_sync(renewer.close)


async def test_five_hundred_readers(user: OracleUser) -> None:
    claims = tuple(Claim(f"{n:032x}", LEASE) for n in range(500))
    async with opened(user.url) as store:
        reply = await store.step(ORDER, Acquire(claims, Mode.READ, client_id="g"))
        assert isinstance(reply, Granted)
        assert len(reply.grants) == 500
        snapshot = await store.look(ORDER)
        assert len(snapshot.record.grants) == 500
        ((readers,),) = run(user, "SELECT active_readers FROM doormans")
        assert readers.startswith('{"0000')
        assert readers.endswith("}")


async def test_more_readers_than_a_record_can_hold(user: OracleUser) -> None:
    """The error says so; the holders keep their locks."""
    async with opened(user.url) as store:
        claims = tuple(Claim(token_hex(16), LEASE) for _ in range(400))
        await store.step(ORDER, Acquire(claims, Mode.READ, client_id="g"))
        more = tuple(Claim(token_hex(16), LEASE) for _ in range(1_500))
        with pytest.raises(BackendError, match="more than a record can hold"):
            await store.step(ORDER, Acquire(more, Mode.READ, client_id="g"))
        assert len((await store.look(ORDER)).record.grants) == 400
        reply = await store.step(ORDER, Release(claims[0].ticket))
        assert isinstance(reply, Released)
        assert reply.held


async def test_the_columns_hold_the_longest_names(user: OracleUser) -> None:
    """Any name fits, also behind the longest prefix."""
    async with (
        connect(user.url, prefix="p" * 100) as locks,
        locks.mutex("t" * 300, "i" * 300),
    ):
        assert len(seats(user)) == 1


async def test_a_ticket_that_the_column_cannot_hold(user: OracleUser) -> None:
    async with connect(user.url) as locks:
        with pytest.raises(ConfigurationError, match="ORA-12899"):
            await locks.acquire_mutex_lock("order", 42, "t" * 65)
        assert await locks.acquire_mutex_lock("order", 42, "t" * 64)


async def test_doormen_are_forgotten(user: OracleUser) -> None:
    async with opened(user.url) as store:
        for name in orders(3):
            await store.step(name, acquire("t"))
        await store.step(orders(3)[0], Release("t"))
        run(
            user,
            "UPDATE doormans SET updated_at ="
            " SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(3700, 'SECOND')",
        )
        await store.forget(3600)
        left = run(user, "SELECT resource_id FROM doormans ORDER BY resource_id")
        assert left == [(1,), (2,)]
        reply = await store.step(orders(3)[0], acquire("again"))
        assert isinstance(reply, Granted)


async def test_all_pages_of_a_scan(user: OracleUser) -> None:
    async with opened(user.url) as store:
        names = [resource(kind, n) for kind in ("a", "b") for n in range(150)]
        async with anyio.create_task_group() as group:

            async def take(name: Resource) -> None:
                await store.step(name, acquire("t"))

            for name in names:
                group.start_soon(take, name)
        run(
            user,
            "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
            " VALUES ('foreign', 1, 'theirs')",
        )
        found = {snapshot.resource async for snapshot in store.scan(None)}
        assert found == {*names, resource("foreign", 1)}
        of_b = [snapshot.resource async for snapshot in store.scan("b")]
        assert len(of_b) == 150
