"""Locks as decorators: taken anew for each call, with names of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote import ConfigurationError, Locks, LockTimeout
from aiorwlock_remote.locks.decorators import CallName
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.runtime.cut_off import Mine

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture
async def locks(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect() as locks:
        yield locks


async def held_now(locks: Locks) -> list[str]:
    return [f"{one.resource_type}/{one.resource_id}" async for one in locks.list()]


async def test_a_lock_is_held_during_each_call(locks: Locks) -> None:
    @locks.mutex("job", "x")
    async def job(number: int, *, name: str = "") -> list[str]:
        """Do it."""
        assert number == 1
        assert name == "n"
        return await held_now(locks)

    assert (job.__name__, job.__doc__) == ("job", "Do it.")
    assert inspect.iscoroutinefunction(job)
    assert list(inspect.signature(job).parameters) == ["number", "name"]
    for _ in range(2):
        assert await job(1, name="n") == ["job/x"]
        assert await held_now(locks) == []


async def test_calls_wait_for_each_other(locks: Locks) -> None:
    inside, most = 0, 0

    @locks.mutex("job", "x")
    async def job() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(0.001)
        inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(job)
    assert most == 1


async def test_both_sides_of_a_readers_writer_lock(locks: Locks) -> None:
    lock = locks.rwlock("catalog", 7)
    together = anyio.Event()
    readers = 0

    @lock.reader
    async def read() -> str:
        nonlocal readers
        readers += 1
        if readers == 2:
            together.set()
        await together.wait()
        return "read"

    @lock.writer
    async def write() -> str:
        return "written"

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(read)
    assert await write() == "written"


async def test_an_error_of_the_function_releases(locks: Locks) -> None:
    @locks.mutex("job", "x")
    async def job() -> None:
        raise Mine

    with pytest.raises(Mine):
        await job()
    assert await held_now(locks) == []


@dataclass
class Order:
    id: int


UUID_ = UUID("12345678123456781234567812345678")


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "name"),
    [
        ("{order}", [42], {}, "42"),
        ("{order}", [], {"order": "a b/c"}, "a b/c"),
        ("{order}", [UUID_], {}, str(UUID_)),
        ("{shop}/{order}", [42, "x"], {}, "x/42"),
        ("{shop}/{order}", [42], {}, "default/42"),
        ("{shop}/{order}", ["a/b", "c%"], {}, "c%25/a%2Fb"),
        ("v1:{order}", ["a:1"], {}, "v1:a%3A%31"),
        ("{{{order}}}", [42], {}, "{42}"),
    ],
)
async def test_names_of_arguments(
    locks: Locks, template: str, args: list[Any], kwargs: dict[str, Any], name: str
) -> None:
    @locks.synchronized("order", template)
    async def pay(order: object, shop: str = "default") -> list[str]:
        del order, shop
        return await held_now(locks)

    assert await pay(*args, **kwargs) == [f"order/{name}"]


async def test_one_field_is_the_value_itself(store: FaultyMemory, locks: Locks) -> None:
    """So that it is the lock that others take by ``mutex("order", 42)``."""

    @locks.synchronized("order", "{order_id}", timeout=0)
    async def pay(order_id: int) -> int:
        return order_id

    async with store.connect_rival() as rival, rival.mutex("order", 42):
        assert await pay(43) == 43
        with pytest.raises(LockTimeout):
            await pay(42)
        with pytest.raises(LockTimeout):
            await pay(order_id=42)
    assert await pay(42) == 42


async def test_attributes_and_methods(locks: Locks) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @locks.synchronized("order", "{self.name}/{order.id}")
        async def pay(self, order: Order) -> list[str]:
            del order
            return await held_now(locks)

    assert await Shop("x").pay(Order(42)) == ["order/x/42"]


async def test_readers(store: FaultyMemory, locks: Locks) -> None:
    @locks.synchronized("order", "{order}", mode="read", timeout=0, reason="looks")
    async def look(order: int) -> list[str]:
        seen = await locks.mutex("order", order).info()
        return [holder.reason for holder in seen.holders]

    async with store.connect_rival() as rival:
        async with rival.rwlock("order", 1).reader.acquire(reason="reads"):
            assert sorted(await look(1)) == ["looks", "reads"]
        async with rival.rwlock("order", 1).writer:
            with pytest.raises(LockTimeout):
                await look(1)


async def test_a_value_that_is_no_name(locks: Locks) -> None:
    @locks.synchronized("order", "{order}")
    async def pay(order: object) -> None:
        pytest.fail(f"it was called with {order}")

    for wrong in (None, 1.5, True, ["42"], Order(42)):
        with pytest.raises(ConfigurationError, match="resource id must be"):
            await pay(wrong)
    with pytest.raises(ConfigurationError, match="empty name"):
        await pay("")
    with pytest.raises(TypeError, match="missing a required argument"):
        await pay()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{order", "is not a template"),
        ("{}", "is not a template"),
        ("{0}", "is not a template"),
        ("{order!r}", "is not a template"),
        ("{order:>5}", "is not a template"),
        ("{order[0]}", "is not a template"),
        ("{shop}{order}", "two fields without a text"),
        ("order", "names no parameter"),
        ("", "names no parameter"),
        ("{orders}", "no parameter orders; it has: order, shop, rest"),
        ("{rest}", "no parameter rest"),
        (42, "template must be"),
    ],
)
async def test_templates_that_are_refused(
    locks: Locks, template: str, message: str
) -> None:
    async def pay(order: int, shop: str = "", **rest: int) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        locks.synchronized("order", template)(pay)


async def test_unsupported_functions_are_refused(locks: Locks) -> None:
    def sync(order: int) -> None: ...
    async def generator(order: int) -> AsyncIterator[int]:
        yield order

    class Job:  # its objects are called like an async function
        async def __call__(self, order: int) -> None: ...

    decorators: list[Any] = [
        locks.mutex("job", "x"),
        locks.synchronized("order", "{order}"),
        locks.once("job", period=60),
    ]
    for decorate in decorators:
        for function in (sync, generator, Job, 5):
            with pytest.raises(ConfigurationError, match="is not an async function"):
                decorate(function)
    with pytest.raises(ConfigurationError, match="mode='both'"):
        locks.synchronized("order", "{order}", mode="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="unknown option 'ttl'"):
        locks.synchronized("order", "{order}", ttl=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="timeout"):
        locks.synchronized("order", "{order}", timeout=-1)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=2, unique=True))
def test_different_values_have_different_names(pairs: list[tuple[str, str]]) -> None:
    async def call(first: str, second: str) -> None: ...

    for template in ("{first}/{second}", "a{first}%{second}b", "{second}ab{first}"):
        name = CallName(template, call)
        one, other = (name.of(pair, {}) for pair in pairs)
        assert one != other


async def test_types(locks: Locks) -> None:
    """Parameters and results stay, as mypy sees."""

    @locks.mutex("job", "x")
    async def by_mutex(number: int) -> str:
        return str(number)

    @locks.synchronized("job", "{number}")
    async def by_name(number: int) -> str:
        return str(number)

    @locks.once("job", period=60)
    async def once(number: int) -> str:
        return str(number)

    assert_type(await by_mutex(1), str)
    assert_type(await by_name(1), str)
    assert_type(await once(1), bool)
    with pytest.raises(TypeError):
        await by_mutex("1", 2)  # type: ignore[call-arg, arg-type]
