"""The read of a fence and of a seat: only where it is needed, of that very grant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.session_client import PendingRows, Request
from aiorwlock_remote.backends.cassandra.stepper import CassandraStepper, LocalGrants
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    Release,
    Released,
    Waiting,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.one_row import OneRow
from tests.servers.fix_cassandra import Keyspace

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the server is what is tested"),
    both_layouts,
]

ORDER = resource("order", 42)
LEASE = 30_000_000


class Sent:
    """The names of a table's requests, as they are sent."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.names: list[str] = []
        self._made: list[tuple[Request, str]] = []
        self._request, self._ask = table.request, table.ask
        table.request = self.request  # type: ignore[method-assign]
        table.ask = self.ask

    def request(self, name: str, *values: object) -> Request:
        made = self._request(name, *values)
        self._made.append((made, name))
        return made

    def _name(self, request: Request) -> str:
        return next(
            name for made, name in self._made if made.statement is request.statement
        )

    def ask(self, host: EventLoop, request: Request) -> PendingRows:
        self.names.append(self._name(request))
        return self._ask(host, request)


@pytest.fixture
async def asked(layout: str, options: Options) -> AsyncIterator[Sent]:
    assert layout
    table = await opening.connect(options, current_event_loop())
    yield Sent(table)
    table.close()


@pytest.fixture
async def steps(asked: Sent) -> CassandraStepper:
    return new_steps(asked.table)


@pytest.fixture
def one_row(keyspace: Keyspace, options: Options) -> OneRow:
    return OneRow(keyspace.visit.session, options)


def read(ticket: str) -> Acquire:
    return Acquire((Claim(ticket, LEASE),), Mode.READ)


def new_steps(table: Table) -> CassandraStepper:
    def later(seconds: float, function: Callable[[], None]) -> None:
        raise NotImplementedError

    cas = CassandraCas(table, current_event_loop())
    return CassandraStepper(cas, LocalGrants(), lambda *_: None, later)


async def test_a_reader_of_the_same_client_reads_no_fence(
    steps: CassandraStepper, asked: Sent, one_row: OneRow
) -> None:
    """The seat was compared with what one of ours had written, and its fence known."""
    await steps.step(ORDER, read("t1"))
    asked.names.clear()
    joined = await steps.step(ORDER, read("t2"))
    assert isinstance(joined, Granted)
    assert asked.names == ["update_record"]
    (grant,) = joined.grants
    assert grant.fence == one_row.fence() > 1_600_000_000_000_000


async def test_a_reader_of_another_process_gets_the_true_fence(
    steps: CassandraStepper, asked: Sent, one_row: OneRow
) -> None:
    """The row knows a provisional one."""
    await steps.step(ORDER, read("t1"))
    asked.names.clear()
    joined = await new_steps(asked.table).step(ORDER, read("t2"))
    assert isinstance(joined, Granted)
    assert asked.names == ["insert", "load", "update_record"]
    (grant,) = joined.grants
    assert grant.fence == one_row.fence() > 1_600_000_000_000_000


async def test_a_successor_has_a_higher_fence(
    steps: CassandraStepper, asked: Sent, one_row: OneRow
) -> None:
    """In the release of one before: the seat changes hands, and no read follows."""
    write = Acquire((Claim("t1", LEASE),), Mode.WRITE)
    await steps.step(ORDER, write)
    first = one_row.fence()
    queued = Acquire((Claim("t2", LEASE),), Mode.WRITE, client_id="g", may_queue=True)
    assert isinstance(await steps.step(ORDER, queued), Waiting)
    asked.names.clear()
    handed = await steps.step(ORDER, Release("t1", then=(queued,)))
    assert asked.names == ["replace"]
    assert isinstance(handed, Released)
    (granted,) = handed.then
    assert isinstance(granted, Granted)
    assert first < granted.grants[0].fence <= one_row.fence()


async def test_a_shown_fence_is_the_ballot(
    steps: CassandraStepper, asked: Sent, one_row: OneRow
) -> None:
    fences = []
    for _ in range(20):
        granted = await steps.step(ORDER, read("t1"))
        assert isinstance(granted, Granted)
        assert granted.grants[0].fence == one_row.fence()
        fences.append(granted.grants[0].fence)
        await steps.step(ORDER, Release("t1"))
    assert fences == sorted(set(fences))
    assert asked.names.count("read_ballot") == 20
    assert asked.names.count("insert") == 20
    assert "load" not in asked.names
