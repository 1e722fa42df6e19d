"""Steps on a real table: what each costs, who is let in, and what is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.session_client import PendingRows, Request
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Forced,
    ForceRelease,
    Granted,
    Refused,
    Release,
    Renew,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.one_row import OneRow
from tests.servers.fix_cassandra import Keyspace

pytestmark = [pytest.mark.anyio, both_layouts]

ORDER = resource("order", 42)
LEASE = 30_000_000


class Contender:
    """A process; ``sent`` are the statements it has asked for.

    ``between``: what others do after its next grant, before it reads the fence.
    """

    def __init__(self, table: Table, client_id: str) -> None:
        self.client_id = client_id
        self.sent: list[str] = []
        self.between: Callable[[], Awaitable[object]] | None = None
        self._ask = table.ask
        self._loop = current_event_loop()
        table.ask = self._asked
        request = table.request

        def counted(name: str, *values: object) -> Any:  # noqa: ANN401
            self.sent.append(name)
            return request(name, *values)

        table.request = counted  # type: ignore[method-assign]
        cas = CassandraCas(table, current_event_loop())
        self._swapping = CasStepper(cas, lambda *_: None)

    async def do(self, command: Any) -> Any:  # noqa: ANN401
        self.sent.clear()
        return await self._swapping.step(ORDER, command)

    def _asked(self, host: EventLoop, request: Request) -> PendingRows:
        between = self.between
        if between is None or self.sent[-1] != "read_ballot":
            return self._ask(host, request)
        self.between = None
        answer = PendingRows()

        async def apart() -> None:
            await between()
            answer.set_result(await self._ask(host, request))

        self._loop.spawn(apart)
        return answer

    def write(self, ticket: str, *, queue: bool = False) -> Acquire:
        claims = (Claim(ticket, LEASE),)
        return Acquire(claims, Mode.WRITE, client_id=self.client_id, may_queue=queue)


@pytest.fixture
async def parties(layout: str, options: Options) -> AsyncIterator[list[Contender]]:
    assert layout
    tables = [await opening.connect(options, current_event_loop()) for _ in range(2)]
    yield [Contender(table, f"client{number}") for number, table in enumerate(tables)]
    for table in tables:
        table.close()


@pytest.fixture
def one_row(keyspace: Keyspace, options: Options) -> OneRow:
    return OneRow(keyspace.visit.session, options)


async def test_uncontended_it_is_one_transaction_each(
    parties: list[Contender], one_row: OneRow
) -> None:
    one, fences = parties[0], list[int]()
    for number in range(3):
        granted = await one.do(one.write(f"t{number}"))
        assert one.sent == ["insert", "read_ballot"]
        fences.append(granted.grants[0].fence)
        assert fences[-1] == one_row.fence()
        assert not one_row.take("other")
        (renewed,) = (await one.do(Renew(((f"t{number}", LEASE),)))).outcomes
        assert one.sent == ["update_record"]
        assert renewed.fence == fences[-1]
        assert (await one.do(Release(f"t{number}"))).held
        assert one.sent == ["delete"]
        assert one_row.load() is None
    assert fences == sorted(set(fences))


async def test_the_one_who_waits_gets_in_after_the_release(
    parties: list[Contender], one_row: OneRow
) -> None:
    one, two = parties
    first = await one.do(one.write("t1"))
    assert isinstance(await two.do(two.write("t2")), Refused)
    assert isinstance(await two.do(two.write("t3", queue=True)), Waiting)
    assert (await one.do(Release("t1"))).held
    assert not one_row.take("other")  # the row stays for whoever waits
    second = await two.do(two.write("t3", queue=True))
    assert isinstance(second, Granted)
    assert second.grants[0].fence == first.grants[0].fence + 1
    assert (await two.do(Release("t3"))).held
    assert one_row.take("other")


async def test_a_published_holder_is_respected(
    parties: list[Contender], one_row: OneRow
) -> None:
    one = parties[0]
    assert one_row.take("other")
    assert isinstance(await one.do(one.write("t1", queue=True)), Waiting)
    assert one_row.load().ticket == "other"
    await one.do(Withdraw("client0", Mode.WRITE, ("t1",)))
    row = one_row.load()
    assert (row.ticket, row.version, row.record) == ("other", None, None)
    assert one_row.free("other")
    assert isinstance(await one.do(one.write("t2")), Granted)


async def test_a_force_from_outside_is_noticed(
    parties: list[Contender], one_row: OneRow
) -> None:
    one, two = parties
    granted = await one.do(one.write("t1"))
    (grant,) = granted.grants
    assert await two.do(ForceRelease(grant.holder, grant.fence)) == Forced(done=True)
    assert one_row.load() is None
    assert not (await one.do(Release("t1"))).held
    assert isinstance(await two.do(two.write("t2")), Granted)


async def test_others_queue_before_the_fence_is_read(
    parties: list[Contender], one_row: OneRow
) -> None:
    one, two = parties
    one.between = lambda: two.do(two.write("t2", queue=True))
    granted = await one.do(one.write("t1"))
    assert isinstance(granted, Granted)
    assert one.sent == ["insert", "read_ballot", "load_written"]
    assert granted.grants[0].fence == one_row.fence()
    assert (await one.do(Release("t1"))).held
    assert isinstance(await two.do(two.write("t2", queue=True)), Granted)


async def test_forced_before_the_fence_is_read(
    parties: list[Contender], one_row: OneRow
) -> None:
    one, two = parties

    async def force() -> None:
        refused = await two.do(two.write("t2", queue=True))
        assert isinstance(refused, Waiting)
        await two.do(ForceRelease(holder_of("t1"), one_row.fence()))

    one.between = force
    with pytest.raises(BackendUnavailable, match="gone before its fence was read"):
        await one.do(one.write("t1"))
    assert isinstance(await two.do(two.write("t2", queue=True)), Granted)


async def test_one_of_two_is_forced_before_their_fence_is_read(
    parties: list[Contender], one_row: OneRow
) -> None:
    """The other one is still in: the error must not say that nothing was done."""
    one, two = parties
    readers = Acquire(
        (Claim("t1", LEASE), Claim("t2", LEASE)), Mode.READ, client_id=one.client_id
    )
    one.between = lambda: two.do(ForceRelease(holder_of("t1"), one_row.fence()))
    with pytest.raises(BackendUnavailable, match="before its fence was read") as caught:
        await one.do(readers)
    assert not caught.value.nothing_done
    await one.do(Withdraw(one.client_id, Mode.READ, ("t1", "t2")))
    assert isinstance(await two.do(two.write("t3")), Granted)
