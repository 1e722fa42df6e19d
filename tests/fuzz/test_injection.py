"""Names, reasons and prefixes that would hit a neighbour's lock if they were code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio

from aiorwlock_remote import ConfigurationError, Held, Locks, connect
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.backends.cassandra.conftest import furnish
from tests.fuzz.hostile import HOSTILE, PREFIXES, REFUSED_PREFIXES
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.without_parts.locking import exclude_and_hand_over

pytestmark = pytest.mark.asyncio

LEASE = 120.0
NEIGHBOUR = ("order", "42")
AT_ONCE = 8

QUICK = ["memory", "sqlite", "files"]
SERVERS = ["fresh_redis", "tables", "mariadb_tables", "mysql_tables", "cassandra"]


@pytest.fixture
def memory() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def files(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


@pytest.fixture
def cassandra(cassandra_node: SharedNode, cassandra_visit: Visit) -> Iterator[str]:
    with fresh_keyspace(cassandra_node, cassandra_visit) as keyspace:
        yield f"{furnish(keyspace, 'pair').url}?request_timeout=20"


@pytest.fixture(
    params=[*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in SERVERS)]
)
def store(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - a URL or a store
    found = request.getfixturevalue(request.param)
    return getattr(found, "url", found)


@pytest_asyncio.fixture
async def pair(store: Any) -> AsyncIterator[tuple[Locks, Locks]]:  # noqa: ANN401
    async with connect(store, lease=LEASE) as one, connect(store) as other:
        yield one, other


async def listed(locks: Locks, kind: str | None = None) -> set[tuple[str, str]]:
    async with aclosing(locks.list(kind)) as found:
        return {(seen.resource_type, seen.resource_id) async for seen in found}


def shown(name: tuple[str, str]) -> tuple[str, str]:
    return resource(*name).shown


async def test_no_name_reaches_another_lock(pair: tuple[Locks, Locks]) -> None:
    """All are held at once: each is found, and excludes itself and no other."""
    locks, others = pair
    texts = list(HOSTILE.values())
    names = [NEIGHBOUR, *((text, "42") for text in texts)]
    names += [("order", text) for text in texts]
    held: dict[tuple[str, str], Held] = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def take(name: tuple[str, str]) -> None:
        async with limit:
            got = await locks.mutex(*name).try_acquire(reason=reason_of(name))
            assert got is not None, f"{name} excludes another name"
            held[name] = got

    async def refused(name: tuple[str, str]) -> None:
        async with limit:
            assert await others.mutex(*name).try_acquire() is None, name
            (holder,) = (await others.mutex(*name).info()).holders
            assert holder.reason == reason_of(name)

    async def released(name: tuple[str, str]) -> None:
        async with limit:
            await held[name].release()

    await each(take, names)
    await each(refused, names)
    assert await listed(others) == {shown(name) for name in names}
    for text in texts:
        assert await listed(others, text) == {shown((text, "42"))}
    await each(released, names[1:])
    assert await listed(others) == {NEIGHBOUR}
    held[NEIGHBOUR].check()
    await held[NEIGHBOUR].release()


def reason_of(name: tuple[str, str]) -> str:
    return name[1][:900].replace("\0", "")


async def each(function: Any, names: list[tuple[str, str]]) -> None:  # noqa: ANN401
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(function, name)


async def test_no_prefix_reaches_the_locks_of_another(store: Any) -> None:  # noqa: ANN401
    for prefix in REFUSED_PREFIXES:
        with pytest.raises(ConfigurationError, match="prefix"):
            await connect(store, prefix=prefix)
    prefixes = PREFIXES[:4] if "cassandra" in str(store) else PREFIXES
    async with AsyncExitStack() as stack:
        every = {
            prefix: await stack.enter_async_context(
                connect(store, prefix=prefix, lease=LEASE)
            )
            for prefix in prefixes
        }
        for number, locks in enumerate(every.values()):
            await stack.enter_async_context(locks.mutex("order", 42))
            await stack.enter_async_context(locks.mutex("order", f"own {number}"))
        for number, locks in enumerate(every.values()):
            own = {NEIGHBOUR, ("order", f"own {number}")}
            assert await listed(locks) == await listed(locks, "order") == own
            # Who breaks what is listed breaks nobody else's.
            assert await listed(locks, "*") == set()


@pytest.mark.parametrize("kind", ["notify", "sql", "resp", "lua"])
async def test_a_waiter_is_woken_by_its_name(
    pair: tuple[Locks, Locks], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages carry names: in a channel, a payload, a statement, a file."""
    real = Locks.mutex

    def mutex(locks: Locks, _: str, __: object, **more: Any) -> Any:  # noqa: ANN401
        return real(locks, HOSTILE[kind], HOSTILE[kind], **more)

    monkeypatch.setattr(Locks, "mutex", mutex)
    await exclude_and_hand_over(*pair)
