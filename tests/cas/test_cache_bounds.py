"""What is remembered of resources nobody asks for: bounded, but for what is lost."""

from __future__ import annotations

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import StoredState, stepper
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import Granted, Release, Reply
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.lossy_clients import NOTHING, ORDER, Party, SharedRow, write

FEW = 4
SEEN = StoredState(None, None, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "CACHE_SIZE", FEW)


def others(first: int, many: int) -> list[Resource]:
    return [resource("other", number) for number in range(first, first + many)]


def remembered(swapping: CasStepper, many: int) -> list[Resource]:
    return [one for one in others(0, many) if swapping.known(one) is not None]


def begin(party: Party, resources: list[Resource]) -> list[Pending[Reply]]:
    return [party.swapping.step(one, write("t")) for one in resources]


def test_of_what_others_saw_the_last_is_remembered() -> None:
    party = Party(SharedRow())
    for one in others(0, 5 * FEW):
        party.swapping.saw(one, SEEN)
    assert remembered(party.swapping, 5 * FEW) == others(4 * FEW, FEW)


def test_a_cached_row_in_use_stays() -> None:
    party = Party(SharedRow())
    party.do(write("t1"))
    for one in others(0, 5 * FEW):
        party.swapping.saw(one, SEEN)
        party.swapping.saw(ORDER, NOTHING)
    assert party.swapping.known(ORDER) == NOTHING
    assert len(remembered(party.swapping, 5 * FEW)) == FEW - 1


def test_what_is_lost_is_not_forgotten() -> None:
    """Its swap may still happen: the next one has to see to that first."""
    row = SharedRow()
    party = Party(row)
    party.cas.fates = ["late"]
    lost = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    for one in others(0, 5 * FEW):
        party.swapping.saw(one, SEEN)
    assert len(remembered(party.swapping, 5 * FEW)) == FEW - 1
    party.asked.clear()
    assert isinstance(party.do(write("t2")), Granted)
    assert party.asked == ["load", "swap"]
    assert not any(ghost() for ghost in row.late)


def test_after_an_outage_what_comes_new_is_bounded_all_the_same() -> None:
    party = Party(SharedRow())
    away = [resource("lost", number) for number in range(3 * FEW)]
    party.cas.fates = ["never"] * len(away)
    begin(party, away)
    party.cas.run()
    for one in others(0, 30 * FEW):
        party.swapping.saw(one, SEEN)
    assert len(remembered(party.swapping, 30 * FEW)) <= len(away)
    party.asked.clear()
    begin(party, away)
    assert party.asked == ["load"] * len(away)  # not one of them is taken for new


def test_a_resource_with_requests_in_flight_keeps_its_order() -> None:
    party = Party(SharedRow())
    first = party.begin(write("t1"))
    for one in others(0, 5 * FEW):
        party.swapping.saw(one, SEEN)
    second = party.begin(Release("t1"))
    assert party.asked == ["swap"]  # of the first alone
    party.cas.run()
    assert isinstance(first.result(), Granted)
    assert second.result().held


def test_many_at_once_are_forgotten_when_others_come() -> None:
    party = Party(SharedRow())
    begin(party, others(0, 5 * FEW))
    party.cas.run()
    party.swapping.saw(ORDER, SEEN)
    for one in others(0, 5 * FEW)[-FEW:] * 5:
        party.swapping.saw(one, SEEN)
    for one in others(5 * FEW, 5 * FEW):
        party.swapping.saw(one, SEEN)
    assert remembered(party.swapping, 10 * FEW) == others(9 * FEW, FEW)


def test_what_is_renewed_is_remembered_until_its_lease_is_over() -> None:
    row = SharedRow()
    party = Party(row)
    for one in others(0, 5 * FEW):
        party.swapping.remember(one, 1000)
    for _ in range(2):
        begin(party, others(0, 5 * FEW))
        party.cas.run()
    assert remembered(party.swapping, 5 * FEW) == others(0, 5 * FEW)
    row.now += 1000
    for one in others(5 * FEW, 5 * FEW):
        party.swapping.saw(one, SEEN)
    assert remembered(party.swapping, 10 * FEW) == others(9 * FEW, FEW)


def test_a_long_lease_keeps_no_other_resource() -> None:
    row = SharedRow()
    party = Party(row)
    for one, micros in ((ORDER, 10**9), *((one, 1000) for one in others(0, 5 * FEW))):
        party.swapping.remember(one, micros)
        party.swapping.saw(one, SEEN)
    row.now += 1000
    for one in others(5 * FEW, 5 * FEW):
        party.swapping.saw(one, SEEN)
    assert party.swapping.known(ORDER) == SEEN
    assert remembered(party.swapping, 10 * FEW) == others(9 * FEW, FEW)
