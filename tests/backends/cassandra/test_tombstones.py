"""What is written so that lost requests stay lost, and so that time stays right."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.backends.cassandra import rows as module
from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.cas import VersionClock
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Release
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.one_row import OneRow
from tests.servers.fix_cassandra import Keyspace
from tests.servers.process import until

pytestmark = [pytest.mark.anyio, both_layouts]

ORDER = resource("order", 42)
TAKE = Acquire((Claim("t1", 30_000_000),), Mode.WRITE)


@pytest.fixture
def one_row(keyspace: Keyspace, options: Options) -> OneRow:
    return OneRow(keyspace.visit.session, options)


async def test_a_placeholder_outlives_the_grant_that_replaced_it(
    table: Table, one_row: OneRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after its release nothing that is late gets in, until it has gone."""
    monkeypatch.setattr(module, "PLACEHOLDER_SECONDS", 3)
    cas = CassandraCas(table, current_event_loop())
    swapping = CasStepper(cas, lambda *_: None)
    nothing = cas.guess()
    done, placeholder = await cas.swap(
        ORDER, nothing, Doorman(), None, cas.times(nothing)
    )
    assert done
    assert placeholder is not None
    late = one_row.appearing("ghost")
    for ticket in ("t1", "t2"):
        take = replace(TAKE, claims=(Claim(ticket, 30_000_000),))
        assert isinstance(await swapping.step(ORDER, take), Granted)
        assert not one_row.take("other")
        released: Any = await swapping.step(ORDER, Release(ticket))
        assert released.held
        row = one_row.load()
        assert (row.ticket, row.record, row.frame) == (None, None, None)
        assert row.version is not None
        assert not one_row.do("insert", *late).applied
    until(lambda: one_row.take("other"), "the placeholder has gone", 15.0)


async def test_time_is_right_after_a_change_that_changes_nothing(
    table: Table, one_row: OneRow
) -> None:
    """A version that is placeholder carries the wall clock of its own moment.

    With that of a change long ago, whoever comes then takes the lease for run out.
    """
    cas = CassandraCas(table, current_event_loop())
    swapping = CasStepper(cas, lambda *_: None)
    assert isinstance(await swapping.step(ORDER, TAKE), Granted)
    state = await cas.load(ORDER)
    assert state.record is not None
    hours = 3_600_000_000
    old = replace(state.record, updated=state.record.updated - hours)
    done, _ = await cas.swap(ORDER, state, old, state.seat, cas.times(state))
    assert done
    newcomer = CassandraCas(table, current_event_loop())
    seen = await newcomer.load(ORDER)
    assert seen.record is not None
    (grant,) = seen.record.grants
    times = newcomer.times(seen)
    assert not grant.dead(times.now)
    assert abs(loads(one_row.load().record).updated - times.wall) < hours / 60


async def test_a_version_that_was_forgotten_is_not_taken_for_new(table: Table) -> None:
    """Its time goes on from what the row says, not from our wall clock."""
    memory = VersionClock(table.options.clock_skew)
    cas = CassandraCas(table, current_event_loop(), memory=memory)
    swapping = CasStepper(cas, lambda *_: None)
    assert isinstance(await swapping.step(ORDER, TAKE), Granted)
    await cas.load(ORDER)
    memory._written.clear()
    state = await cas.load(ORDER)
    later = replace_clock(cas, ahead=9_000_000)  # less than clock_skew
    times, written = later.times(state), state.mark.written
    assert times.now - written.frame == times.sent - written.seen


def replace_clock(cas: CassandraCas, ahead: int) -> CassandraCas:
    """The same with a wall clock that is ahead."""
    clock = cas.local_clock

    class Ahead:
        now = staticmethod(clock.now)

        @staticmethod
        def wall() -> float:
            return clock.wall() + ahead / 1e6

    cas.local_clock = Ahead()
    return cas
