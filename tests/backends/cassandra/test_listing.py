"""Lists of a table, which come in pages."""

from __future__ import annotations

import anyio
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy

from aiorwlock_remote import BackendUnavailable, connect
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.core.names import resource
from tests.backends.cassandra.counting_store import CountingBackend
from tests.servers.fix_cassandra import Keyspace, SharedNode
from tests.servers.process import IP
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("left_open")]


@pytest.mark.only_on("asyncio", "the server tells")
async def test_a_list_does_not_forget_what_is_waited_for(
    keyspace: Keyspace, counted: CountingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is: how old a lease is, only whoever saw it before knows."""
    monkeypatch.setattr("aiorwlock_remote.cas.version_clock.MAX_VERSIONS_CACHED", 2)
    async with connect(counted) as locks, connect(keyspace.url) as others:
        order = resource("order", 42)
        store = counted.store
        held = await others.mutex("order", 42).acquire()
        state = await store.cas.peek(order)
        more = [await others.mutex("other", n).acquire() for n in range(3)]
        assert len([d async for d in locks.list()]) == len([held, *more])
        again = await store.cas.peek(order)
        assert again.mark.written is state.mark.written is not None


async def test_a_large_table_comes_in_pages(
    keyspace: Keyspace, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert layout
    monkeypatch.setattr(keyspace.visit.session, "default_fetch_size", 7)
    backend = CassandraBackend(keyspace.visit.session, keyspace.name)
    async with connect(backend, prefix="p-") as locks, connect(backend) as others:
        assert [d async for d in locks.list()] == []
        names = {str(number) for number in range(20)} | {"x", "y"}
        for name in names:
            assert await locks.acquire_readers_lock("thing", name, "t")
        assert await others.acquire_mutex_lock("thing", 99, "t")
        assert await locks.acquire_mutex_lock("other", 1, "t")
        shown = [d async for d in locks.list("thing")]
        assert {d.resource_id for d in shown} == names
        assert len(shown) == len(names)
        assert len([d async for d in others.list()]) == len(names) + 2
        fences = {d.fence for d in shown}
        assert min(fences) > 1 << 40  # ballots, of those never seen before, too


async def test_each_page_has_its_time(
    keyspace: Keyspace, counted: CountingBackend, cassandra_node: SharedNode
) -> None:
    """At a node that falls silent in between; nothing else may give it away."""
    async with connect(counted) as locks:
        for number in range(3):
            assert await locks.acquire_mutex_lock("order", number, "t")
    near = ExecutionProfile(RoundRobinPolicy())
    with (
        Proxy(cassandra_node.port) as proxy,
        Cluster(
            [IP],
            port=proxy.port,
            protocol_version=5,
            execution_profiles={EXEC_PROFILE_DEFAULT: near},
            idle_heartbeat_interval=0,
        ) as cluster,
    ):
        session = cluster.connect()
        session.default_fetch_size = 1
        slow = CassandraBackend(session, keyspace.name, request_timeout=1)
        async with connect(slow, connect_timeout=20) as locks:
            shown = aiter(locks.list())
            await anext(shown)
            proxy.black_hole(on=True)
            with anyio.fail_after(30), pytest.raises(BackendUnavailable):
                async for _ in shown:
                    pass
