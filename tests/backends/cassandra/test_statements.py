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
def one_row(
    cassandra_node: SharedNode, keyspace: Keyspace, options: Options, layout: str
) -> Iterator[OneRow]:
    """Its session's clock may be set as a test likes."""
    assert keyspace.name == options.keyspace
    assert layout
    with Visit(IP, cassandra_node.port) as visit:
        yield OneRow(visit.session, options)


def test_released_nothing_is_left(one_row: OneRow) -> None:
    assert one_row.appear("gluww").applied
    assert not one_row.take("other")
    assert one_row.vanish("gluww").applied
    assert one_row.load() is None
    assert one_row.take("other")
    refused = one_row.appear("gluww")
    assert (refused.applied, refused.ticket, refused.version) == (False, "other", None)
    assert one_row.free("other")
    assert one_row.load() is None


def test_a_refused_step_tells_the_row(one_row: OneRow) -> None:
    version, next_one = uuid4(), uuid4()
    assert one_row.appear("gluww", version).applied
    step = (next_one, "{1}", 6, *KEY, version, "gluww", SINCE, *NEVER_STORED)
    assert one_row.do("update_record", *step).applied
    refused = one_row.do("update_record", *step)
    assert not refused.applied
    assert (refused.version, refused.record, refused.frame) == (next_one, "{1}", 6)
    assert refused.ticket == "gluww"


def test_no_cell_ends_though_the_table_has_a_default(one_row: OneRow) -> None:
    """Somebody sets ``default_time_to_live`` while programs hold locks."""
    alter = f"ALTER TABLE {one_row.table} WITH default_time_to_live = "
    first, second, third = uuid4(), uuid4(), uuid4()
    one_row.prepare("insert", "replace", "update_record")
    one_row.session.execute(f"{alter} 600")
    try:
        assert one_row.appear("gluww", first).applied
        assert one_row.seconds_left() == [None] * 5
        step = (second, "{1}", 6, *KEY, first, "gluww", SINCE, *NEVER_STORED)
        assert one_row.do("update_record", *step).applied
        assert one_row.seconds_left() == [None] * 5
        new = ("other", SINCE, third, "{2}", 7)
        old = (*KEY, second, "gluww", SINCE, *NEVER_STORED)
        assert one_row.do("replace", *new, *old).applied
        assert one_row.seconds_left() == [None] * 5
        assert one_row.vanish("other").applied
        # The table's default does count: a plain program's record ends.
        assert one_row.take("plain")
        (ticket, *_) = one_row.seconds_left()
        assert ticket is not None
    finally:
        one_row.session.execute(f"{alter} 0")


def test_a_step_that_keeps_the_seat_keeps_its_ballot(one_row: OneRow) -> None:
    version, next_one = uuid4(), uuid4()
    one_row.appear("gluww", version)
    fence = one_row.fence()
    one_row.do(
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
    assert one_row.fence() == fence
    seat = next_one, "gluww", SINCE, *NEVER_STORED
    one_row.do("replace", "heir", SINCE, uuid4(), "{2}", 7, *KEY, *seat)
    assert one_row.fence() > fence


def test_a_queue_before_a_foreign_seat_goes_and_the_seat_stays(one_row: OneRow) -> None:
    one_row.take("other")
    row, version = one_row.load(), uuid4()
    seat = ("other", row.acquired_at)
    assert one_row.do(
        "update_record", version, "{}", 6, *KEY, None, *seat, *NEVER_STORED
    ).applied
    assert one_row.do(
        "update_record", None, None, None, *KEY, version, *seat, *NEVER_STORED
    ).applied
    row = one_row.load()
    assert (row.ticket, row.version, row.record) == ("other", None, None)
    assert not one_row.do("delete", *KEY, version, *seat).applied
    assert one_row.free("other")
    assert one_row.load() is None


def test_a_step_that_lets_in_wants_the_record_and_its_time(one_row: OneRow) -> None:
    """Compared with null: other conditions would hold for a cell that is not there."""
    version = uuid4()
    assert one_row.appear("gluww", version).applied
    step = ("heir", SINCE, version, "{}", 9, *KEY, version, "gluww", SINCE)
    for cell in ("record", "frame"):
        assert one_row.do("replace", *step, None, None).applied
        step = (*step[:7], version, "heir", SINCE)
        one_row.session.execute(
            f"UPDATE {one_row.table} SET {cell} = null "  # noqa: S608 - two names
            "WHERE resource_type = 'order' AND resource_id = 42"
        )
        assert not one_row.do("replace", *step, None, None).applied
        assert one_row.do("replace", *step, *NEVER_STORED).applied


def test_a_foreign_seat_can_be_forced(one_row: OneRow) -> None:
    one_row.take("other")
    row = one_row.load()
    assert not one_row.do("delete", *KEY, None, "another", row.acquired_at).applied
    assert one_row.do("delete", *KEY, None, "other", row.acquired_at).applied
    assert one_row.load() is None


def test_fences_rise_over_everything(one_row: OneRow) -> None:
    """Release, takeover of a dead holder's row, force, foreigners, wrong clocks."""
    random, fences = Random(42), list[int]()

    def wrong_clock() -> int:
        return int((time.time() + random.choice((-5, 0, 5))) * 1e6)

    one_row.session.cluster.timestamp_generator = wrong_clock
    for number in range(60):
        ticket = f"t{number}"
        assert one_row.appear(ticket).applied
        fences.append(one_row.fence())
        if number % 4 == 0:  # its lease ran out: the next one steps over the row
            row, ticket = one_row.load(), f"heir{number}"
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
            assert one_row.do(*step).applied
            # In one row phases count on from the ballot, one a step at most: this one's
            # own ballot is above.
            assert one_row.fence() >= fences[-1] + 1
            fences.append(fences[-1] + 1)
        if number % 3 == 0:
            assert one_row.free(ticket)  # forced, by somebody with a shell
        else:
            assert one_row.vanish(ticket).applied
        if number % 5 == 0:
            assert one_row.take("other")
            assert one_row.free("other")
    assert fences == sorted(set(fences))
    assert abs(fences[-1] / 1e6 - time.time()) < 60  # the coordinator's clock


def test_a_plain_delete_from_a_slow_clock_deletes_nothing(one_row: OneRow) -> None:
    """Why every write of ours is a lightweight transaction (SYSTEMS.md, S0)."""
    one_row.session.cluster.timestamp_generator = lambda: int(
        (time.time() - 0.05) * 1e6
    )
    stayed = 0
    for number in range(10):
        assert one_row.take(f"t{number}")
        one_row.free(f"t{number}", plain=True)
        stayed += one_row.load() is not None
        one_row.free(f"t{number}")
    assert stayed >= 5
