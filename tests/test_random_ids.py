"""Random bits out of a stock: never the same ones twice, also after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiorwlock_remote import connect
from aiorwlock_remote._util import random_ids
from aiorwlock_remote._util.random_ids import ID_BYTES, STOCK_SIZE, random_id

FORK = """
import os
from aiorwlock_remote._util.random_ids import random_id
random_id()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"".join(random_id() for _ in range(100)))
    os._exit(0)
os.wait()
of_child = os.read(read, 1 << 16)
of_parent = b"".join(random_id() for _ in range(100))
print(of_child.hex(), of_parent.hex())
"""


def test_ids_differ_between_threads() -> None:
    def draw(_: int) -> list[bytes]:
        return [random_id() for _ in range(3 * STOCK_SIZE)]

    with ThreadPoolExecutor(8) as pool:
        drawn = [each for many in pool.map(draw, range(32)) for each in many]
    assert len(set(drawn)) == 32 * 3 * STOCK_SIZE
    assert {len(each) for each in drawn} == {ID_BYTES}


def test_the_system_is_asked_for_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def urandom(size: int, read: Callable[[int], bytes] = os.urandom) -> bytes:
        asked.append(size)
        return read(size)

    monkeypatch.setattr(os, "urandom", urandom)
    random_ids.discard_random_ids()
    for _ in range(STOCK_SIZE):
        random_id()
    assert asked == [ID_BYTES * STOCK_SIZE]


def test_a_forked_child_has_none_of_its_parents() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=True
    )
    of_child, of_parent = (bytes.fromhex(text) for text in ran.stdout.split())
    for bits in (of_child, of_parent):
        assert len(bits) == 100 * ID_BYTES
    drawn = {
        bits[n : n + ID_BYTES]
        for bits in (of_child, of_parent)
        for n in range(0, len(bits), ID_BYTES)
    }
    assert len(drawn) == 200


@pytest.mark.anyio
async def test_opening_a_connection_discards_drawn_ids() -> None:
    """A clone of this process would draw the same."""
    random_id()
    drawn_by_a_clone = set(random_ids._stocks[os.getpid()])
    async with connect("memory://"):
        assert random_id() not in drawn_by_a_clone
