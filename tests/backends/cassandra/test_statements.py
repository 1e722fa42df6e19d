"""What the store's statements do to the row, and the published ones beside them.

And that fences rise: that of a grant from nothing is the Paxos ballot that made it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from uuid import uuid4

import pytest

from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.rows import NEVER_STORED
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.one_row import KEY, SINCE, OneRow
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import Keyspace, SharedNode
from tests.servers.process import IP

pytestmark = both_layouts


@pytest.fixture
def desk(
    cassandra_node: SharedNode, keyspace: Keyspace, options: Options, layout: str
) -> Iterator[OneRow]:
    """Its session's clock may be set as a test likes."""
    assert keyspace.name == options.keyspace
    assert layout
    with Visit(IP, cassandra_node.port) as visit:
        yield OneRow(visit.session, options)


def test_released_nothing_is_left(desk: OneRow) -> None:
    assert desk.appear("gluww").applied
    assert not desk.take("other")
    assert desk.vanish("gluww").applied
    assert desk.load() is None
    assert desk.take("other")
    refused = desk.appear("gluww")
    assert (refused.applied, refused.ticket, refused.version) == (False, "other", None)
    assert desk.free("other")
    assert desk.load() is None


def test_a_refused_step_tells_the_row(desk: OneRow) -> None:
    version, next_one = uuid4(), uuid4()
    assert desk.appear("gluww", version).applied
    step = (next_one, "{1}", 6, *KEY, version, "gluww", SINCE, *NEVER_STORED)
    assert desk.do("update_record", *step).applied
    refused = desk.do("update_record", *step)
    assert not refused.applied
    assert (refused.version, refused.record, refused.frame) == (next_one, "{1}", 6)
    assert refused.ticket == "gluww"


def test_no_cell_ends_though_the_table_has_a_default(desk: OneRow) -> None:
    """Somebody sets ``default_time_to_live`` while programs hold locks."""
    alter = f"ALTER TABLE {desk.table} WITH default_time_to_live = "
    first, second, third = uuid4(), uuid4(), uuid4()
    desk.prepare("insert", "replace", "update_record")
    desk.session.execute(f"{alter} 600")
    try:
        assert desk.appear("gluww", first).applied
        assert desk.seconds_left() == [None] * 5
        step = (second, "{1}", 6, *KEY, first, "gluww", SINCE, *NEVER_STORED)
        assert desk.do("update_record", *step).applied
        assert desk.seconds_left() == [None] * 5
        new = ("other", SINCE, third, "{2}", 7)
        old = (*KEY, second, "gluww", SINCE, *NEVER_STORED)
        assert desk.do("replace", *new, *old).applied
        assert desk.seconds_left() == [None] * 5
        assert desk.vanish("other").applied
        # The table's default does count: a plain program's record ends.
        assert desk.take("plain")
        (ticket, *_) = desk.seconds_left()
        assert ticket is not None
    finally:
        desk.session.execute(f"{alter} 0")


def test_a_step_that_keeps_the_seat_keeps_its_ballot(desk: OneRow) -> None:
    version, next_one = uuid4(), uuid4()
    desk.appear("gluww", version)
    fence = desk.fence()
    desk.do(
        "update_record",
        next_one,
        "{1}",
        6,
        *KEY,
        version,
        "gluww",
        SINCE,
        *NEVER_STORED,
    )
    assert desk.fence() == fence
    seat = next_one, "gluww", SINCE, *NEVER_STORED
    desk.do("replace", "heir", SINCE, uuid4(), "{2}", 7, *KEY, *seat)
    assert desk.fence() > fence


def test_a_queue_before_a_foreign_seat_goes_and_the_seat_stays(desk: OneRow) -> None:
    desk.take("other")
    row, version = desk.load(), uuid4()
    seat = ("other", row.acquired_at)
    assert desk.do(
        "update_record", version, "{}", 6, *KEY, None, *seat, *NEVER_STORED
    ).applied
    assert desk.do(
        "update_record", None, None, None, *KEY, version, *seat, *NEVER_STORED
    ).applied
    row = desk.load()
    assert (row.ticket, row.version, row.record) == ("other", None, None)
    assert not desk.do("delete", *KEY, version, *seat).applied
    assert desk.free("other")
    assert desk.load() is None


def test_a_step_that_lets_in_wants_the_record_and_its_time(desk: OneRow) -> None:
    """Compared with null: other conditions would hold for a cell that is not there."""
    version = uuid4()
    assert desk.appear("gluww", version).applied
    step = ("heir", SINCE, version, "{}", 9, *KEY, version, "gluww", SINCE)
    for cell in ("record", "frame"):
        assert desk.do("replace", *step, None, None).applied
        step = (*step[:7], version, "heir", SINCE)
        desk.session.execute(
            f"UPDATE {desk.table} SET {cell} = null "  # noqa: S608 - two names
            "WHERE resource_type = 'order' AND resource_id = 42"
        )
        assert not desk.do("replace", *step, None, None).applied
        assert desk.do("replace", *step, *NEVER_STORED).applied


def test_a_foreign_seat_can_be_forced(desk: OneRow) -> None:
    desk.take("other")
    row = desk.load()
    assert not desk.do("delete", *KEY, None, "another", row.acquired_at).applied
    assert desk.do("delete", *KEY, None, "other", row.acquired_at).applied
    assert desk.load() is None


def test_fences_rise_over_everything(desk: OneRow) -> None:
    """Release, takeover of a dead holder's row, force, foreigners, wrong clocks."""
    random, fences = Random(42), list[int]()

    def wrong_clock() -> int:
        return int((time.time() + random.choice((-5, 0, 5))) * 1e6)

    desk.session.cluster.timestamp_generator = wrong_clock
    for number in range(60):
        ticket = f"t{number}"
        assert desk.appear(ticket).applied
        fences.append(desk.fence())
        if number % 4 == 0:  # its lease ran out: the next one steps over the row
            row, ticket = desk.load(), f"heir{number}"
            seat = row.version, row.ticket, row.acquired_at
            step = (
                "replace",
                ticket,
                SINCE,
                uuid4(),
                "{}",
                9,
                *KEY,
                *seat,
                *NEVER_STORED,
            )
            assert desk.do(*step).applied
            # In one row phases count on from the ballot, one a step at most: this one's
            # own ballot is above.
            assert desk.fence() >= fences[-1] + 1
            fences.append(fences[-1] + 1)
        if number % 3 == 0:
            assert desk.free(ticket)  # forced, by somebody with a shell
        else:
            assert desk.vanish(ticket).applied
        if number % 5 == 0:
            assert desk.take("other")
            assert desk.free("other")
    assert fences == sorted(set(fences))
    assert abs(fences[-1] / 1e6 - time.time()) < 60  # the coordinator's clock


def test_a_plain_delete_from_a_slow_clock_deletes_nothing(desk: OneRow) -> None:
    """Why every write of ours is a lightweight transaction (SYSTEMS.md, S0)."""
    desk.session.cluster.timestamp_generator = lambda: int((time.time() - 0.05) * 1e6)
    stayed = 0
    for number in range(10):
        assert desk.take(f"t{number}")
        desk.free(f"t{number}", plain=True)
        stayed += desk.load() is not None
        desk.free(f"t{number}")
    assert stayed >= 5
