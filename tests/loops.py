"""The event loops that tests run on, and which of them where it does not matter."""

from __future__ import annotations

import os
from zlib import crc32

import pytest

LOOPS = (
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
)

IN_TURN = ("asyncio", "trio")
ALL_IN_TURN = ("asyncio", "uvloop", "trio")
ASYNCIO_IN_TURN = ("asyncio trio", "uvloop trio")
"""Each case on trio, and on one of the two loops of asyncio."""
ON_ALL = ("Cancellation",)
"""Parts of the names of cases that each loop must show for every store."""
SLEEPING = (
    "test_a_blocked_loop_keeps_its_locks",
    "test_a_foreign_release_lets_us_in",
    "test_a_holder_is_kept",
    "test_a_killed_holder",
    "test_a_killed_waiter",
    "test_adopted_is_kept",
    "test_all_is_deleted_under_a_holder_and_two_waiters",
    "test_an_awaited_grant_is_kept",
    "test_nothing_is_counted_twice",
    "test_one_expiry_after_the_other",
    "test_policy_writer",
    "test_two_processes_exclude_each_other",
    "test_waiters_survive_a_deleted_seat",
    "test_who_does_not_come_blocks_nobody",
)
"""Cases that wait for leases, polls and processes, of every store."""
CROWD_CASES = "TestCrowd"
CROWD_CASES_ON = {
    "TestMemory": "trio",
    "TestPostgresql": "asyncio",
    "TestRedis": "uvloop",
}
"""The suites that run the cases with many clients and long waits: one of each kind of
store, on one loop.
"""
ALL_TURNS = bool(os.environ.get("ALL_TURNS"))
"""Nobody takes turns: each case on both, at each of the servers that share them."""


def one_each(first: object, second: object) -> list[object]:
    """Two kinds of trouble: the first on asyncio, the second on trio."""
    if ALL_TURNS:
        return [first, second]
    on = (pytest.mark.only_on(loop, "the other has the other kind") for loop in IN_TURN)
    return [
        pytest.param(kind, marks=mark)
        for kind, mark in zip((first, second), on, strict=True)
    ]


def is_on(loop: str, name: str) -> bool:
    """Whether a test of this name runs on it."""
    return f"[{loop}" in name or f"-{loop}" in name


def turn_of(cases: str, test: str, loops: tuple[str, ...] = IN_TURN) -> frozenset[str]:
    """The loops of a case in a suite whose cases run on these loops in turn.

    ``loops``: a turn each, which is one loop, or several with blanks between them.
    """
    if ALL_TURNS or any(part in cases for part in ON_ALL):
        return frozenset(" ".join(loops).split())
    turn = loops[crc32(f"{cases}::{test}".encode()) % len(loops)]
    return frozenset(turn.split())


def is_sleeper(cases: str, test: str) -> bool:
    """Whether a store that is marked so runs this case on one loop.

    A loop that stands still is another matter on trio: there the driver has a thread.
    """
    return test in SLEEPING and cases != "TestBlockedLoop"


def has_crowd(suite: str, loop: str) -> bool:
    """Whether this suite runs the cases of ``CROWD_CASES`` on this loop."""
    return ALL_TURNS or CROWD_CASES_ON.get(suite) == loop


def is_in_share(cases: str, test: str, share: tuple[int, int]) -> bool:
    """Whether a case belongs to the n-th of so many suites that share all cases."""
    number, suites = share
    return ALL_TURNS or crc32(f"{test} of {cases}".encode()) % suites == number
