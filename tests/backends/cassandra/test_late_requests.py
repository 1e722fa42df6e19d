"""Requests that are carried out long after whoever sent them gave up.

A proxy keeps the bytes, as the socket of a paused coordinator does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import ResponseFuture
from cassandra.query import SimpleStatement

from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.rows import NEVER_STORED
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.one_row import KEY, SINCE, OneRow
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import Keyspace, SharedNode
from tests.servers.process import IP, until
from tests.servers.proxy import Proxy

pytestmark = both_layouts


@dataclass(frozen=True)
class LateRequests:
    """``lost`` talks through the proxy; ``here`` is everybody else."""

    proxy: Proxy
    lost: OneRow
    here: OneRow

    def ghost(self, name: str, *values: object) -> ResponseFuture:
        """Sent, and held back; nobody waits for it any more."""
        self.proxy.hold()
        future = self.lost.send(name, *values)
        until(lambda: self.proxy.held > 0, "the request is on its way")
        return future

    def arrives(self, ghost: ResponseFuture) -> bool:
        """Now it is carried out; whether it was applied."""
        self.proxy.let_go()
        return bool(ghost.result().one().applied)

    def serial_read(self) -> object:
        """What seems to tell, and does not."""
        select = SimpleStatement(
            f"SELECT ticket FROM {self.here.table} "  # noqa: S608 - a name of ours
            "WHERE resource_type='order' AND resource_id=42",
            consistency_level=ConsistencyLevel.SERIAL,
        )
        return self.here.session.execute(select).one()


@pytest.fixture
def late(
    cassandra_node: SharedNode, keyspace: Keyspace, options: Options, layout: str
) -> Iterator[LateRequests]:
    assert layout
    with Proxy(cassandra_node.port) as proxy, Visit(IP, proxy.port) as far:
        lost = OneRow(far.session, options)
        lost.prepare("insert", "update_record")
        yield LateRequests(proxy, lost, OneRow(keyspace.visit.session, options))


def test_a_serial_read_resolves_nothing(late: LateRequests) -> None:
    """The negative control: the ghost holds what the read had said to be free."""
    ghost = late.ghost("insert", *late.lost.appearing("ghost"))
    assert late.serial_read() is None
    assert late.serial_read() is None
    assert late.arrives(ghost)
    assert late.here.load().ticket == "ghost"


def test_a_changed_version_refuses_the_late_request(late: LateRequests) -> None:
    version = uuid4()
    late.here.appear("gluww", version)
    seat = ("gluww", SINCE)
    ghost = late.ghost(
        "update_record", uuid4(), "ghost", 6, *KEY, version, *seat, *NEVER_STORED
    )
    assert late.here.do(
        "update_record", uuid4(), "{}", 6, *KEY, version, *seat, *NEVER_STORED
    ).applied
    assert not late.arrives(ghost)
    assert late.here.load().record == "{}"


def test_a_placeholder_in_the_empty_row_refuses_it_too(late: LateRequests) -> None:
    """For as long as it lives; ours step over it, published programs wait."""
    ghost, placeholder = late.ghost("insert", *late.lost.appearing("ghost")), uuid4()
    assert late.here.do("insert_placeholder", 30, placeholder, *KEY).applied
    assert not late.here.take("other")
    assert not late.arrives(ghost)
    refused = late.here.appear("gluww")
    assert (refused.applied, refused.version, refused.ticket) == (
        False,
        placeholder,
        None,
    )
    step = (
        "replace",
        "gluww",
        SINCE,
        uuid4(),
        "{}",
        9,
        *KEY,
        placeholder,
        None,
        None,
        *NEVER_STORED,
    )
    assert late.here.do(*step).applied
    assert late.here.vanish("gluww").applied
    assert late.here.take("other")


def test_a_placeholder_goes_by_itself(late: LateRequests) -> None:
    assert late.here.do("insert_placeholder", 5, uuid4(), *KEY).applied  # for seconds
    assert not late.here.take("other")
    until(lambda: late.here.take("other"), "the placeholder has gone", 30.0)


def test_a_ghost_that_comes_later_still_is_one_holder_and_its_fence_rises(
    late: LateRequests,
) -> None:
    """Absence repeats; but a ballot is chosen when a request is carried out."""
    ghost, fences = late.ghost("insert", *late.lost.appearing("ghost")), list[int]()
    for number in range(5):
        assert late.here.appear(f"t{number}").applied
        fences.append(late.here.fence())
        assert late.here.vanish(f"t{number}").applied
    assert late.arrives(ghost)
    fences.append(late.here.fence())
    assert not late.here.take("other")
    assert not late.here.appear("t9").applied
    assert late.here.vanish("ghost").applied
    assert late.here.appear("t9").applied
    fences.append(late.here.fence())
    assert fences == sorted(set(fences))


def test_a_ghost_never_joins_a_holder(late: LateRequests) -> None:
    ghost = late.ghost("insert", *late.lost.appearing("ghost"))
    assert late.here.appear("gluww").applied
    assert not late.arrives(ghost)
    assert late.here.load().ticket == "gluww"
