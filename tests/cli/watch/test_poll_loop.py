"""Round after round: when the store is asked, and what is made of its failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError, LockInfo
from aiorwlock_remote.cli.watch.command import poll_loop
from aiorwlock_remote.cli.watch.state import WatchOutput, WatchState
from aiorwlock_remote.locks.changes import Change, pause
from tests.cli.watch.fix_watch import Time, brief, holder, order

pytestmark = pytest.mark.asyncio

Answer = Sequence[LockInfo] | Exception


class Output(WatchOutput):
    """An output that keeps what it is given."""

    def __init__(self, *, readers: int = 99) -> None:
        self.lines: list[tuple[datetime, str]] = []
        self.painted = 0
        self._readers = readers

    def check(self) -> None:
        self._readers -= 1
        if self._readers < 0:
            raise BrokenPipeError

    async def write(self, changes: Sequence[Change], when: datetime) -> None:
        self.lines += [(when, text) for text in brief(changes)]

    def paint(self) -> None:
        self.painted += 1

    def leave(self) -> None:
        raise AssertionError


async def watch(
    answers: Sequence[Answer],
    output: Output,
    *,
    every: float = 1.0,
    takes: Callable[[int], float] = lambda _: 0.0,
) -> Time:
    """Give these answers; the last one for ever, for ten seconds."""
    asked = 0
    with anyio.CancelScope() as scope:
        time = Time(10.0, scope.cancel)

        async def look() -> Sequence[LockInfo]:
            nonlocal asked
            await anyio.lowlevel.checkpoint()
            time.pass_by(takes(asked))
            answer = answers[min(asked, len(answers) - 1)]
            asked += 1
            if isinstance(answer, Exception):
                raise answer
            return answer

        await poll_loop(look, WatchState(), output, every, time)
    return time


async def test_one_look_a_round() -> None:
    output = Output()
    time = await watch([[], [order(1, holder())], []], output, takes=lambda _: 0.1)
    assert time.slept == [0.9] * 10
    assert output.painted == 10
    assert [text for _, text in output.lines] == [
        *("watching", "granted order/1 a", "ended order/1 a", "free order/1"),
    ]
    assert output.lines[1][0].second == 1


async def test_a_slow_store_is_left_alone_as_long_as_it_was_asked() -> None:
    assert pause(0.0, 1.0) == 1.0
    assert pause(0.4, 1.0) == pytest.approx(0.6)
    assert pause(0.5, 1.0) == 0.5
    assert pause(0.8, 1.0) == 0.8
    assert pause(7.0, 1.0) == 7.0


async def test_a_slow_store_is_asked_less_often() -> None:
    time = await watch([[]], Output(), takes=lambda asked: 0.0 if asked == 0 else 3.0)
    assert time.slept == [1.0, 3.0, 3.0]


async def test_a_store_that_did_not_answer_is_asked_again_soon() -> None:
    down = BackendUnavailable(what="no answer")
    time = await watch([[], down], Output(), takes=lambda asked: 3.0 if asked else 0.0)
    assert time.slept == [1.0] * 4


async def test_a_store_that_goes_down_is_reported_once_and_watched_again() -> None:
    output = Output()
    down = BackendUnavailable(what="no answer")
    gone = ConfigurationError(what="the file does not exist")
    there = [order(1, holder())]
    await watch([there, down, gone, down, [], down, []], output)
    assert [(when.second, text) for when, text in output.lines] == [
        *((0, "watching"), (0, "held order/1 a"), (1, "unavailable")),
        *((4, "watching"), (4, "ended order/1 a"), (4, "free order/1")),
        *((5, "unavailable"), (6, "watching")),
    ]


@pytest.mark.parametrize(
    "failure", [BackendUnavailable(what="x"), ConfigurationError(what="x"), OSError()]
)
async def test_a_store_that_never_was_there_ends_it(failure: Exception) -> None:
    output = Output()
    with pytest.raises(type(failure)):
        await watch([failure], output)
    assert output.lines == []


async def test_a_bug_ends_it_at_any_time() -> None:
    with pytest.raises(ZeroDivisionError):
        await watch([[], ZeroDivisionError()], Output())


async def test_watch_ends_when_its_output_is_closed_though_nothing_changes() -> None:
    output = Output(readers=3)
    with pytest.raises(BrokenPipeError):
        await watch([[]], output)
    assert output.painted == 3
