"""Ballots read together: few requests, each answer to whom it belongs."""

from __future__ import annotations

import secrets
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from aiorwlock_remote import BackendUnavailable, Unsupported
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.read_back import (
    ROWS_PER_READ,
    WRITE_TIMES,
    Ballot,
    BallotRequest,
    Ballots,
    grouped,
)
from aiorwlock_remote.backends.cassandra.session_client import Request, Rows
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.fake_loop import FakeLoop
from tests.backends.cassandra.one_row import OneRow
from tests.servers.fix_cassandra import Keyspace


class FakeTable:
    """In the place of a ``Table``: the test gives the answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, Pending[Rows]]] = []

    def request(self, name: str, *values: object) -> Request:
        return Request(name, values)

    def ask(self, host: EventLoop, request: Request) -> Pending[Rows]:
        del host
        pending: Pending[Rows] = Pending()
        self.asked.append((request, pending))
        return pending

    def names(self) -> list[str]:
        return [str(request.statement) for request, _ in self.asked]

    def answer(self, index: int, *numbers: int) -> None:
        """Rows that many have: what stands there, and its ballot."""
        self.asked[index][1].set_result(
            [
                {
                    "version": UUID(int=number),
                    **dict.fromkeys(WRITE_TIMES.values(), number + 7),
                }
                for number in numbers
            ]
        )


@pytest.fixture
def fake_table() -> FakeTable:
    return FakeTable()


@pytest.fixture
def ballots(fake_table: FakeTable, loop: FakeLoop) -> Ballots:
    return Ballots(cast("Table", fake_table), loop)


def read(
    ballots: Ballots, number: int, node: object = None, *, version: int | None = None
) -> Pending[Ballot]:
    """Of ``order/number``, which has that version; as many rows have in ``answer``."""
    wanted = UUID(int=number if version is None else version)
    return ballots.read(("order", number), wanted, node)


def values(request: Request) -> Any:  # noqa: ANN401 - what a statement takes
    return request.values


def test_one_is_asked_alone(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    found = read(ballots, 1)
    assert not fake_table.asked
    loop.turn()
    assert fake_table.names() == ["read_ballot"]
    fake_table.answer(0, 1)
    assert found.result() == 8


def test_another_version_is_not_what_was_asked_for(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    found = read(ballots, 1, version=1_000)
    loop.turn()
    fake_table.answer(0, 1)
    assert found.result() is None


@pytest.mark.parametrize("time", WRITE_TIMES.values())
@pytest.mark.parametrize("at", [None, 9])
def test_a_row_that_is_not_whole_has_no_ballot(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop, time: str, at: int | None
) -> None:
    """Another program's write hides a cell, or has overwritten it."""
    found = read(ballots, 1)
    loop.turn()
    times = dict.fromkeys(WRITE_TIMES.values(), 8) | {time: at}
    fake_table.asked[0][1].set_result([{"version": UUID(int=1), **times}])
    assert found.result() is None


def test_ballots_of_one_turn_are_read_together(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    reads = [read(ballots, number) for number in (3, 1, 2)]
    loop.turn()
    ((request, _),) = fake_table.asked
    assert request.statement == "read_ballots"
    assert values(request) == (["order"], [1, 2, 3])
    fake_table.answer(0, 1, 3)
    assert [found.result() for found in reads] == [10, 8, None]


def test_the_next_turn_is_another_request(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    for number in (1, 2):
        read(ballots, number).log_failure()
        loop.turn()
    assert fake_table.names() == ["read_ballot", "read_ballot"]


def test_each_is_asked_at_the_node_that_knows_it_first(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    for number in range(5):
        node = "odd" if number % 2 else "even"
        read(ballots, number, node).log_failure()
    loop.turn()
    requests = {str(request.node): values(request) for request, _ in fake_table.asked}
    assert requests == {"even": (["order"], [0, 2, 4]), "odd": (["order"], [1, 3])}


def test_a_failed_read_of_ballots_fails_for_all(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    reads = [read(ballots, number) for number in range(3)]
    loop.turn()
    fake_table.asked[0][1].set_exception(BackendUnavailable(what="away"))
    assert all(isinstance(found.error, BackendUnavailable) for found in reads)


def test_a_server_that_forbids_many_is_asked_one_by_one(
    ballots: Ballots, fake_table: FakeTable, loop: FakeLoop
) -> None:
    reads = [read(ballots, number) for number in range(3)]
    loop.turn()
    fake_table.asked[0][1].set_exception(
        Unsupported(what="Guardrail partition_keys_in_select")
    )
    assert fake_table.names() == ["read_ballots"] + ["read_ballot"] * 3
    for number in range(3):
        fake_table.answer(1 + number, number)
    assert [found.result() for found in reads] == [7, 8, 9]
    fake_table.asked.clear()
    for number in range(3):
        read(ballots, number).log_failure()
    loop.turn()
    assert fake_table.names() == ["read_ballot"] * 3


def test_groups_name_nothing_else() -> None:
    """As one request asks for each type with each number."""
    keys = [("order", n) for n in range(ROWS_PER_READ + 3)]
    keys += [(f"text{n},x", 0) for n in range(5)]
    keys += [("order,a", 0), ("lone", 77)]
    wanted = [BallotRequest(key, UUID(int=0), Pending()) for key in keys]
    groups = [[one.key for one in group] for group in grouped(wanted)]
    assert sorted(key for group in groups for key in group) == sorted(keys)
    for group in groups:
        types = {kind for kind, _ in group}
        numbers = {number for _, number in group}
        assert len(types) * len(numbers) == len(group) <= ROWS_PER_READ
    assert len(groups) == 4


@both_layouts
@pytest.mark.anyio
async def test_the_real_ones(layout: str, options: Options, keyspace: Keyspace) -> None:
    """In both layouts, of one type and of many."""
    assert layout
    one_row = OneRow(keyspace.visit.session, options)
    table = await opening.connect(options, current_event_loop())
    ballots = Ballots(table, current_event_loop())
    some = secrets.token_hex(4)
    keys = [(some, n) for n in range(3)] + [(f"{some},{n}", 0) for n in range(3)]
    wanted = [((some, 3), uuid4())]
    try:
        for kind, number in keys:
            values = one_row.appearing("t")[:-2]
            assert one_row.do("insert", *values, kind, number).applied
            wanted.append(
                ((kind, number), one_row.do("read_ballot", kind, number).version)
            )
        reads = [ballots.read(key, version, None) for key, version in wanted]
        nothing, *found = [await ballot for ballot in reads]
    finally:
        table.close()
    assert nothing is None
    assert found == [one_row.do("read_ballot", *key).ticket_written for key in keys]
