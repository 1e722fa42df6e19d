"""A record is replaced whole or not at all, wherever a write was cut off."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote import BackendUnavailable, BadRecord
from aiorwlock_remote.backends.files.record_file import (
    MAX_SLOT_BYTES,
    MIN_SLOT_BYTES,
    Slots,
)

OLD, NEW = b"old" * 100, b"new" * 1000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "record", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def written(file: int, *contents: bytes, synced: bool = True) -> bytes:
    """The whole file, after these were written in this order."""
    for content in contents:
        slots = Slots(file)
        slots.read()
        if slots.fits(content):
            slots.write(content, synced=synced)
        else:
            slots.fill(content)
    return os.pread(file, 20 * MIN_SLOT_BYTES, 0)


def put(file: int, data: bytes) -> bytes | None:
    os.ftruncate(file, 0)
    os.pwrite(file, data, 0)
    return Slots(file).read()


def test_an_empty_file_has_no_record(file: int) -> None:
    assert Slots(file).read() is None


def test_the_last_one_counts(file: int) -> None:
    for number in range(5):
        written(file, b"%d" % number)
        assert Slots(file).read() == b"%d" % number


@pytest.mark.parametrize("synced", [True, False])
def test_cut_off_at_any_byte(file: int, synced: bool) -> None:
    written(file, b"oldest", b"older")
    before = written(file, OLD, synced=synced)
    after = written(file, NEW, synced=synced)
    for cut in range(0, MIN_SLOT_BYTES, 7):
        whole = put(file, after[:cut] + before[cut:])
        assert whole in (OLD, NEW)
    assert put(file, after) == NEW


def test_one_too_long_for_its_slot(file: int) -> None:
    big = b"x" * 3 * MIN_SLOT_BYTES
    written(file, OLD)
    assert not Slots(file).fits(big)
    assert len(written(file, big)) == 12 * MIN_SLOT_BYTES
    assert Slots(file).read() == big


def test_one_that_is_too_long(file: int) -> None:
    """It is not written: nobody would read it."""
    before = written(file, OLD)
    with pytest.raises(BackendUnavailable) as caught:
        written(file, b"x" * MAX_SLOT_BYTES)
    assert caught.value.nothing_done
    assert os.pread(file, 20 * MIN_SLOT_BYTES, 0) == before
    os.ftruncate(file, 3 * MAX_SLOT_BYTES + 1)
    with pytest.raises(BadRecord):
        Slots(file).read()


@pytest.mark.parametrize("size", [0, 1, MIN_SLOT_BYTES, 3 * MIN_SLOT_BYTES - 1])
def test_an_unfinished_slot_is_ignored(file: int, size: int) -> None:
    data = written(file, OLD)
    assert put(file, data[:size]) is None


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 2**32))
def test_power_cut_at_any_write(plan: list[bool], seed: int) -> None:
    """Of each slot is left what was synced last, or what is there now, or a part."""
    chance = random.Random(seed)
    with tempfile.TemporaryFile() as opened:
        file = opened.fileno()
        disk, confirmed = written(file, b"1"), 1
        for number, synced in enumerate(plan, 2):
            slots = Slots(file)
            slots.read()
            slots.write(b"%d" % number, synced=synced)
            now = os.pread(file, len(disk), 0)
            for _ in range(20):
                image = b""
                for at in range(0, len(disk), MIN_SLOT_BYTES):
                    cut = at + chance.choice([0, 40, MIN_SLOT_BYTES])
                    image += now[at:cut] + disk[cut : at + MIN_SLOT_BYTES]
                assert confirmed <= int(put(file, image) or 0) <= number
            put(file, now)
            if synced:
                disk, confirmed = now, number


def test_a_damaged_slot_is_an_error(file: int) -> None:
    data = written(file, OLD, NEW)
    with pytest.raises(BadRecord, match="damaged"):
        put(file, data.replace(b"old", b"odd").replace(b"new", b"now"))


def test_of_another_version(file: int) -> None:
    data = written(file, OLD, NEW)
    with pytest.raises(BadRecord, match="unknown version"):
        put(file, data.replace(b"rwlock1", b"rwlock2"))
