"""Rows and what the core makes of them; fences that wait for their ballot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote import BadRecord
from aiorwlock_remote.backends.cassandra.rows import (
    NO_ROW,
    PROVISIONAL_LIMIT,
    counted_from,
    parse_row,
    seat_columns,
)
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.commands import Acquire, Claim, Downgrade, Granted, Release
from aiorwlock_remote.core.doorman import Doorman, LossNote, MutexRecord
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import transition
from aiorwlock_remote.core.value import replace

BALLOT = 1_795_275_327_518_000
WALL = 1_700_000_000_000_000


def row(record: Doorman | None, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "ticket": "gluww",
        "acquired_at": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - as the driver's
        "version": uuid4(),
        "record": None if record is None else dumps(record),
        "frame": None if record is None else 7,
        "ticket_written": BALLOT,
    } | changes


def test_no_row_is_nothing() -> None:
    assert parse_row(None) is NO_ROW
    assert parse_row({"[applied]": False}) is NO_ROW
    assert NO_ROW.seat is None
    assert NO_ROW.condition == (None, None, None)


def test_a_published_program_holds_it() -> None:
    at = datetime(1970, 1, 1, 0, 16, 40, 7000)  # noqa: DTZ001
    found = parse_row(row(None, acquired_at=at, version=None))
    assert found.seat == MutexRecord("gluww,1000.007")
    assert found.condition == (None, "gluww", 1_000_007)
    assert seat_columns(found.seat) == ("gluww", 1_000_007)


@given(ticket=st.text(min_size=1), millis=st.integers(0, 4_000_000_000_000))
def test_a_seat_is_written_as_it_was_read(ticket: str, millis: int) -> None:
    seconds, rest = divmod(millis, 1000)
    value = f"{ticket},{seconds}.{rest:03}" if rest else f"{ticket},{seconds}"
    assert seat_columns(MutexRecord(value)) == (ticket, millis)


def test_a_placeholder_is_neither_held_nor_recorded() -> None:
    version = UUID(int=5)
    found = parse_row(
        {"[applied]": False}
        | row(None, ticket=None, acquired_at=None, version=version, ticket_written=None)
    )
    assert found.seat is None
    assert found.record is None
    assert found.condition == (version, None, None)


def test_a_record_without_a_time_is_refused() -> None:
    with pytest.raises(BadRecord):
        parse_row(row(Doorman(), frame=None))
    for found in (row(Doorman(), frame=-1), row(None, frame=-1)):
        with pytest.raises(BadRecord):  # else it would be tried for ever
            parse_row(found)
    with pytest.raises(BadRecord):
        parse_row(row(Doorman()) | {"record": "{"})


def test_a_grant_from_nothing_gets_the_ballot() -> None:
    claim = Claim("t1", 1_000_000)
    step = transition(None, None, Acquire((claim,), Mode.WRITE), 5, 0, WALL)
    assert isinstance(step.reply, Granted)
    assert step.reply.grants[0].fence == step.record.last == 1
    assert step.record.updated == step.record.created == WALL
    assert step.seat == MutexRecord(f"t1,{WALL // 1_000_000}", 1_000_005)
    at = datetime.fromtimestamp(WALL // 1_000_000, UTC)
    seat = {"ticket": "t1", "acquired_at": at.replace(tzinfo=None)}
    unsettled = parse_row(row(step.record, **seat, ticket_written=None))
    assert not unsettled.settled
    found = parse_row(row(step.record, **seat))
    assert found.settled
    assert found.record is not None
    assert found.record.last == found.record.grants[0].fence == BALLOT


@pytest.mark.parametrize("ticket", [None, "other"])
def test_without_our_seat_fences_count_from_the_next_one(ticket: str | None) -> None:
    """Somebody took it away, or sits there: a ballot of that seat is not ours."""
    held = transition(None, None, Acquire((Claim("t1", 1_000_000),), Mode.WRITE), 5, 0)
    seated = None if ticket is None else BALLOT
    at = datetime(2026, 1, 2) if ticket else None  # noqa: DTZ001 - as the driver's
    found = parse_row(
        row(held.record, ticket=ticket, acquired_at=at, ticket_written=seated)
    )
    assert found.settled
    assert found.record is not None
    assert found.record.last == 0
    if ticket:
        return
    asked = Acquire((Claim("t2", 1_000_000),), Mode.WRITE)
    step = transition(found.record, found.seat, asked, 6, 0, WALL)
    assert isinstance(step.reply, Granted)
    assert step.record.last == step.reply.grants[0].fence == 1


def test_phases_count_on_by_one_whatever_the_wall_clock_says() -> None:
    claims = [Claim(f"t{number}", 1_000_000) for number in range(3)]
    doorman = transition(
        None, None, Acquire((claims[0],), Mode.WRITE), 5, 0, WALL
    ).record
    doorman = counted_from(doorman, BALLOT)
    down = Downgrade("t0", claims[1])
    seat = MutexRecord(doorman.seat or "")
    step = transition(doorman, seat, down, 6, 0, WALL + 10**9)
    assert step.record.last == BALLOT + 1
    more = Release("t1", then=(Acquire((claims[2],), Mode.WRITE),))
    step = transition(step.record, step.seat, more, 7, 0, WALL + 10**9)
    assert step.record.last == BALLOT + 2


def test_fences_that_are_counted_already_stay() -> None:
    ended = (LossNote(1, "*", "forced"), LossNote(BALLOT, "*", "forced"))
    doorman = Doorman(last=BALLOT + 3, endings=ended)
    found = counted_from(doorman, BALLOT)
    assert found.last == BALLOT + 3
    assert [e.fence for e in found.endings] == [BALLOT, BALLOT]
    assert counted_from(Doorman(), BALLOT) == Doorman()
    assert counted_from(replace(doorman, last=2), BALLOT).last == BALLOT + 1
    assert BALLOT > PROVISIONAL_LIMIT
