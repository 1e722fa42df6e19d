"""Nodes that are stopped: they keep their connections, and say nothing."""

from __future__ import annotations

import secrets
from itertools import count
from uuid import uuid4

import anyio
import pytest

from aiorwlock_remote import BackendError, BackendUnavailable
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options, statement
from aiorwlock_remote.backends.cassandra.session_client import APPLIED
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.servers.cassandra_ring import IPS, CassandraRing, Visit
from tests.servers.fix_cassandra import StartCassandra

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

TASKS = 8
ENOUGH = 20
ANSWERED_IN = 30.0  # a request may take two seconds, and the machine stand still
IN_A_ROW = 3
"""Requests of a task that may be refused, of two seconds each: mostly one, and another
while the heartbeat is on its way, which a busy machine delays."""


def fresh_options(*ips: str, port: int) -> Options:
    """Of a keyspace that nobody has, not even this test when it is run again."""
    name = f"stopped_{secrets.token_hex(4)}"
    return Options(name, ips, port, connect_timeout=20.0)


def prepare(visit: Visit, options: Options, copies: int) -> None:
    visit.rows(
        f"CREATE KEYSPACE {options.keyspace} WITH replication = "
        f"{{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"
    )
    visit.rows(statement("schema_pair", options))


async def cycle(table: Table, key: tuple[str, int]) -> None:
    """Acquired and released."""
    host, version = current_event_loop(), uuid4()
    rows = await table.ask(
        host, table.request("insert", "t", 1000, version, "{}", 5, *key)
    )
    assert rows[0][APPLIED]
    rows = await table.ask(host, table.request("delete", *key, version, "t", 1000))
    assert rows[0][APPLIED]


async def test_the_only_node_stops_and_goes_on(start_cassandra: StartCassandra) -> None:
    node = start_cassandra()
    options = fresh_options(node.ip, port=node.port)
    with Visit(node.ip, node.port) as visit:
        prepare(visit, options, 1)
    table = await opening.connect(options, current_event_loop())
    try:
        await cycle(table, ("order", 1))
        node.pause()
        try:
            with anyio.fail_after(ANSWERED_IN):
                with pytest.raises(BackendUnavailable) as caught:
                    await cycle(table, ("order", 2))
            assert not caught.value.nothing_done
        finally:
            node.resume()
        await soon(table)
    finally:
        table.close()


async def soon(table: Table) -> None:
    """As soon as the driver has found the node again.

    Each attempt has a key of its own: one that was not answered may be carried out.
    """
    with anyio.fail_after(30):
        for number in count(3):
            try:
                await cycle(table, ("order", number))
            except BackendError:
                await anyio.sleep(0.05)
            else:
                return


class Runner:
    """Cycles on keys of its own; remembers its longest silence, and what filled it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.longest = 0.0
        self.refused: list[BackendError] = []
        self.worst: list[BackendError] = []
        self.done = 0
        self.stopping = False

    async def run(self, table: Table) -> None:
        last, turn = anyio.current_time(), 0
        while not self.stopping:
            try:
                await cycle(table, (f"task{self.number},{turn}", 0))
            except BackendError as error:
                turn += 1  # whatever became of that one
                self.refused.append(error)
            else:
                self.worst = max(self.worst, self.refused, key=len)
                self.refused = []
                now = anyio.current_time()
                self.longest, last = max(self.longest, now - last), now
                self.done += 1


async def progress(runners: list[Runner]) -> None:
    """Each has had so many successes more, and so a silence before them has ended."""
    before = [runner.done for runner in runners]
    with anyio.fail_after(60):
        for runner, done in zip(runners, before, strict=True):
            while runner.done < done + ENOUGH:  # noqa: ASYNC110 - tasks at work
                await anyio.sleep(0.01)


async def test_a_stopped_node_of_three_holds_nobody_up_for_long(
    cassandra_ring: CassandraRing,
) -> None:
    options = fresh_options(*IPS, port=cassandra_ring.port)
    with Visit(IPS[0], cassandra_ring.port) as visit:
        prepare(visit, options, 3)
    cassandra_ring.settle()
    table = await opening.connect(options, current_event_loop())
    stopped = cassandra_ring.nodes[1]
    runners = [Runner(number) for number in range(TASKS)]
    try:
        async with anyio.create_task_group() as tasks:
            for runner in runners:
                tasks.start_soon(runner.run, table)
            await progress(runners)
            stopped.pause()
            try:
                await progress(runners)
            finally:
                stopped.resume()
            await progress(runners)
            for runner in runners:
                runner.stopping = True
    finally:
        table.close()
    print([round(runner.longest, 2) for runner in runners])  # noqa: T201
    worst = max((runner.worst for runner in runners), key=len)
    assert len(worst) <= IN_A_ROW, worst
