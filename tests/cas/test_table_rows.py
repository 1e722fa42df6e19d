"""What stands in the column ``record``, of this version and of the one before."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from aiorwlock_remote.cas.table_cas import (
    COMPRESSED_PREFIX,
    MAX_RECORD_BYTES_TO_ENTER,
    dump_record,
    load_record,
    micros_of,
    relative_fences,
    with_fence,
)
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    LossNote,
    QueueEntry,
    Requester,
)
from aiorwlock_remote.core.permits import MAX_LIMIT
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BadRecord

CREATED = "2026-11-21 19:05:00.000001"
BASE = micros_of(CREATED)
ENDED = LossNote(6, "*", "forced")


def held(last: int, readers: int = 2) -> Doorman:
    """By readers whose tickets have a space, as stands behind a fence, too."""
    grants = [Grant(f"a b{n}", Mode.READ, last, 0, None) for n in range(readers)]
    return Doorman(last=last, grants=tuple(grants), endings=(ENDED,), number=3)


@pytest.mark.parametrize("readers", [0, 2, 100])
def test_a_record_is_read_as_it_was_written(readers: int) -> None:
    record = held(7, readers)
    text = dump_record(record, begins=False)
    assert (COMPRESSED_PREFIX in text) == (readers == 100)
    assert load_record(text, CREATED) == record


@pytest.mark.parametrize("readers", [1, 100])
def test_the_fence_of_a_new_phase_is_the_stores(readers: int) -> None:
    """Whatever the process called it; what ended before keeps its number."""
    record = load_record("1234" + dump_record(held(7, readers), begins=True), CREATED)
    assert record == replace(held(1234, readers), endings=(ENDED,))


def permits(*fences: int) -> Doorman:
    grants = [
        Grant(f"t{n}", Mode.PERMIT, fence, 0, None, limit=5)
        for n, fence in enumerate(fences)
    ]
    return Doorman(last=fences[-1], grants=tuple(grants))


@pytest.mark.parametrize("stores", [13, 1234])
def test_each_new_permit_has_a_fence_of_its_own(stores: int) -> None:
    """Counted from the one that the store chooses; those before keep theirs."""
    new = relative_fences(permits(7, 10, 12, 13), 10)
    found = load_record(f"{stores}" + dump_record(new, begins=True), CREATED)
    assert found == permits(7, 10, stores - 1, stores)
    assert with_fence(new, stores) == found, "as the process remembers it"
    again = dump_record(found, begins=False)
    assert load_record(again, CREATED) == found
    assert relative_fences(held(7), 3) == held(7), "a phase has one fence"


def test_the_greatest_limit_fits() -> None:
    """Beside 40 processes that wait, all of them described."""
    chance = Random(5)

    def micros() -> int:
        return BASE + chance.randrange(10**9)

    def who() -> Requester:
        host, pid = f"web-{chance.randrange(40)}.example.org", chance.randrange(40_000)
        return Requester(host, pid, f"Task-{chance.randrange(5000)}", "calls payments")

    holds = tuple(
        Grant(f"{chance.getrandbits(128):032x}", Mode.PERMIT, *times, who(), 0, 250)
        for times in [(micros(), micros(), micros()) for _ in range(MAX_LIMIT)]
    )
    waits = tuple(
        QueueEntry(
            *(
                number,
                f"{chance.getrandbits(64):016x}",
                Mode.PERMIT,
                micros(),
                micros(),
            ),
            *(100_000, 9),
            who=who(),
            limit=250,
        )
        for number in range(40)
    )
    record = Doorman(last=BASE, grants=holds, queue=waits)
    assert len(dump_record(record, begins=False)) <= MAX_RECORD_BYTES_TO_ENTER


def test_a_row_never_held_has_no_fence() -> None:
    for text in (
        dump_record(Doorman(number=1), begins=False),
        dumps(Doorman(number=1)),
    ):
        assert load_record(text, CREATED) == Doorman(number=1)


def test_the_version_before_counted_from_the_rows_creation() -> None:
    ended = replace(ENDED, fence=BASE + 6)
    expected = replace(held(BASE + 7), endings=(ended,))
    assert load_record(dumps(held(7)), CREATED) == expected


@pytest.mark.parametrize(
    "text", ["12 ", "12", "12 {}", f"{2**63} {dumps(held(7))}", f"-1 {dumps(held(7))}"]
)
def test_a_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(BadRecord):
        load_record(text, CREATED)
