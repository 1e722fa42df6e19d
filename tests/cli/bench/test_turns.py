"""What passes between the turns of two processes."""

from __future__ import annotations

import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.cli.bench_peer import MIN_TURNS, Turn, hand_over_times, take_turns


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([], [], []),
        ([(1, 2)], [], []),
        ([(1, 2)], [(5, 6)], [3]),
        ([(5, 6)], [(1, 2)], [3]),
        ([(1, 2), (5, 6)], [(3, 4), (10, 11)], [1, 1, 4]),
        ([(1, 2), (3, 4), (5, 6)], [(8, 9)], [2]),
    ],
)
def test_a_turn_of_ones_own_is_no_hand_over(
    ours: list[Turn], theirs: list[Turn], expected: list[float]
) -> None:
    assert hand_over_times(ours, theirs) == expected


@pytest.mark.anyio
async def test_turns_are_taken_however_little_time_there_is() -> None:
    async with connect("memory://turns") as locks:
        turns = await take_turns(locks.mutex("bench", 1), hold=0, seconds=0)
        assert len(turns) == MIN_TURNS
        assert await _free(locks)
    moments = [moment for turn in turns for moment in turn]
    assert moments == sorted(moments)


async def _free(locks: Locks) -> bool:
    return [seen async for seen in locks.list()] == []
