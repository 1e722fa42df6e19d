"""The store as users see it: what it asks for, what it shows, who makes its table."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import anyio
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockLost,
    Locks,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.store import CassandraStore
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.ports import Bell, Host, Pending, Settings
from aiorwlock_remote.ports import Store as Port
from aiorwlock_remote.testing.conformance.party import Told, until
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.desk import Desk
from tests.renewing import renewed
from tests.servers.fix_cassandra import Keyspace, SharedNode
from tests.servers.process import IP
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.anyio

EMPTIED = """
UPDATE {table} SET ticket = null, acquired_at = null
WHERE resource_type = 'order' AND resource_id = 42 IF ticket != ''
"""
READS = {"peek", "load", "scan", "seated"}


class Counted:
    """A backend that counts the statements of its store, by name."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.sent: Counter[str] = Counter()
        self.steps = 0
        self.unsent: set[str] = set()
        self.store: CassandraStore
        self._backend = CassandraBackend(keyspace.visit.session, keyspace.name)

    async def open(self, host: Host, bell: Bell, settings: Settings) -> Port:
        store = self.store = await self._backend.open(host, bell, settings)
        table: Table = store._table
        request = table.request

        def counted(name: str, *values: object) -> Any:  # noqa: ANN401
            self.sent[name] += 1
            if name in self.unsent:
                raise BackendUnavailable(what="nobody is there", nothing_done=True)
            return request(name, *values)

        step = store.step

        def stepped(resource: Resource, command: Command) -> Pending[Reply]:
            self.steps += 1
            return step(resource, command)

        table.request = counted  # type: ignore[method-assign]
        store.step = stepped  # type: ignore[method-assign]
        return store

    def taken(self) -> dict[str, int]:
        """What was sent since the last call."""
        sent, self.sent = dict(self.sent), Counter()
        return sent

    @property
    def swaps(self) -> int:
        return sum(n for name, n in self.sent.items() if name not in READS)


@pytest.fixture
def counted(keyspace: Keyspace, layout: str) -> Counted:
    assert layout
    return Counted(keyspace)


@pytest.fixture
def desk(keyspace: Keyspace, options: Options) -> Desk:
    return Desk(keyspace.visit.session, options)


@both_layouts
async def test_what_a_lock_costs(counted: Counted) -> None:
    """One transaction to enter and one to leave, whatever kind of lock it is."""
    async with connect(counted) as locks:
        for lock in (
            locks.mutex("order", 42),
            locks.rwlock("c", "seven").writer,
            locks.rwlock("c", 8).reader,
        ):
            async with lock:
                assert counted.taken() == {"appear": 1, "seated": 1}
            assert counted.taken() == {"vanish": 1}


@both_layouts
async def test_a_renewed_lock_is_released_at_once(counted: Counted) -> None:
    """The loop is told what the keeper's thread left behind."""
    async with connect(counted) as locks:
        async with locks.mutex("order", 42, lease=3) as held:
            counted.taken()
            await renewed(held, 1)
            sent = counted.taken()
            assert set(sent) == {"keep"}
        assert counted.taken() == {"vanish": 1}


@both_layouts
async def test_a_seat_that_somebody_emptied(
    keyspace: Keyspace, counted: Counted, options: Options
) -> None:
    """As whoever wants to break a lock by hand may do; its row stays."""
    async with connect(counted) as locks, connect(keyspace.url) as others:
        held = await locks.mutex("order", 42).acquire()
        keyspace.visit.rows(EMPTIED.format(table=options.quoted))
        async with others.mutex("order", 42).acquire(timeout=30) as taken:
            assert taken.fence > held.fence
            with pytest.raises(LockLost) as caught:
                await held.release()
            assert caught.value.reason == "forced"
        async with locks.mutex("order", 42) as again:
            assert again.fence > taken.fence


@pytest.mark.only_on("asyncio", "the server tells")
async def test_a_list_does_not_forget_what_is_waited_for(
    keyspace: Keyspace, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is: how old a lease is, only whoever saw it before knows."""
    monkeypatch.setattr("aiorwlock_remote.backends.cassandra.frame.REMEMBERED", 2)
    async with connect(counted) as locks, connect(keyspace.url) as others:
        order = resource("order", 42)
        store = counted.store
        held = await others.mutex("order", 42).acquire()
        state = await store._cas.peek(order)
        version = state.mark.found.version
        seen = store._memory.get(version)
        more = [await others.mutex("other", n).acquire() for n in range(3)]
        assert len([d async for d in locks.list()]) == len([held, *more])
        assert store._memory.get(version) == seen


@both_layouts
async def test_a_lock_for_ever_is_made_from_a_short_one(
    counted: Counted, desk: Desk
) -> None:
    """Else a request that is carried out late could lock for ever."""
    async with connect(counted) as locks:
        held = await locks.mutex("order", 42, lease=None).acquire()
        assert counted.taken() == {"appear": 1, "seated": 1, "keep": 1}
        assert '"expires":null' in desk.load().record
        assert held.expires_in is None
        assert await held.release()
        assert await locks.acquire_mutex_lock("order", 42, "gluww")
        assert '"expires":null' in desk.load().record
        assert await locks.acquire_mutex_lock("order", 42, "gluww")
        assert await locks.release_mutex_lock("order", 42, "gluww")


@both_layouts
async def test_one_that_could_not_be_made_to_last_is_taken_back(
    counted: Counted, desk: Desk
) -> None:
    """Its second transaction was not done, but the first one was."""
    counted.unsent.add("keep")
    async with connect(counted) as locks:
        with pytest.raises(BackendUnavailable) as caught:
            await locks.mutex("order", 42, lease=None).acquire(timeout=0)
        assert not caught.value.nothing_done
        assert desk.load() is None


@pytest.mark.only_on("asyncio", "the server counts")
async def test_a_thousand_tasks_wait_quietly(counted: Counted) -> None:
    """They poll by plain reads, as one; their place costs a transaction a second."""
    seconds = 4.0
    async with (
        connect(counted) as holder,
        connect(counted) as locks,
        holder.mutex("order", 42),
        anyio.create_task_group() as group,
    ):
        for _ in range(1000):
            group.start_soon(wait, locks)
        await until(queued(holder), 10)
        counted.taken()
        await anyio.sleep(seconds)
        assert 0 < counted.swaps <= 5 * seconds
        assert counted.sent["peek"] <= 40 * seconds
        group.cancel_scope.cancel()


def queued(locks: Locks) -> Told:
    async def told() -> bool:
        return bool((await locks.mutex("order", 42).info()).queue)

    return told


async def wait(locks: Locks) -> None:
    async with locks.mutex("order", 42):
        raise AssertionError


@both_layouts
@pytest.mark.no_uvloop("what is sent is the same")
async def test_eight_processes_take_turns(keyspace: Keyspace, layout: str) -> None:
    """A step that meets others costs two transactions on the average at most."""
    assert layout
    everybody = [Counted(keyspace) for _ in range(8)]
    inside, entered = 0, 0
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connect(c)) for c in everybody]

        async def work(locks: Locks, turns: int) -> None:
            nonlocal inside, entered
            for _ in range(turns):
                async with locks.mutex("order", 42):
                    inside += 1
                    entered += 1
                    assert inside == 1
                    inside -= 1

        def swaps() -> int:
            return sum(one.swaps for one in everybody)

        def steps() -> int:
            return sum(one.steps for one in everybody)

        # A node that is not warm yet, or that has to wait for its turn on a busy
        # machine, makes all of them meet again and again.
        for turns in (2, 8, 8, 8):
            entered = 0
            for one in everybody:
                one.taken()
                one.steps = 0
            async with anyio.create_task_group() as group:
                for locks in opened:
                    group.start_soon(work, locks, turns)
            assert entered == 8 * turns
            assert steps() >= 2 * entered
            if turns == 8 and swaps() <= 2 * steps():
                break
    assert swaps() <= 2 * steps(), sum((one.sent for one in everybody), Counter())


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
    keyspace: Keyspace, counted: Counted, cassandra_node: SharedNode
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


@pytest.mark.parametrize("kind", ["pair", "type"])
async def test_the_table_is_made_when_asked_for(
    keyspace: Keyspace, kind: Literal["pair", "type"]
) -> None:
    """Nothing makes it unasked; who misses it is told how."""
    backend = CassandraBackend(keyspace.visit.session, keyspace.name)
    with pytest.raises(Unsupported, match="rwlock schema cassandra"):
        await connect(backend)
    with pytest.raises(Unsupported, match="rwlock schema cassandra"):
        await connect(keyspace.url, connect_timeout=20)
    await backend.create_schema(kind)
    await backend.create_schema(kind)  # nothing happens
    async with connect(backend) as locks, locks.mutex("order", 42):
        found = {f.name: f async for f in locks.examine()}
    assert found["layout"].value == kind
    assert found["version"].rating == "good"
    assert "replication_factor=1" in found["replicas"].value
    assert found["paxos"].value.startswith("v")
    assert found["memory"].rating == "good"
    assert found["commit log"].value == "periodic"


async def test_a_backend_that_cannot_be_used(keyspace: Keyspace) -> None:
    session = keyspace.visit.session
    wrong: list[Callable[[], object]] = [
        lambda: CassandraBackend("cassandra://localhost/locks"),  # type: ignore[arg-type]
        lambda: CassandraBackend(session),  # which has no keyspace
        lambda: CassandraBackend(session, "a;b"),
        lambda: CassandraBackend(session, "locks", consistency="ONE"),
        lambda: CassandraBackend(session, "locks", request_timeout=0),
    ]
    for make in wrong:
        with pytest.raises(ConfigurationError):
            make()
    backend = CassandraBackend(session, "nowhere")
    assert repr(backend) == '<CassandraBackend of "nowhere"."mutex_locks">'
    with pytest.raises(ConfigurationError, match="layout"):
        await backend.create_schema("both")  # type: ignore[arg-type]
    with pytest.raises(Unsupported):
        await backend.create_schema()
    with pytest.raises(Unsupported, match="CREATE KEYSPACE"):
        await connect(backend)


@pytest.fixture(autouse=True)
def _left_open(keyspace: Keyspace) -> Iterator[None]:
    yield
    assert not keyspace.visit.session.is_shutdown
