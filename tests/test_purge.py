"""Walks through a table of which nobody knows how long it is."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote._util import purge
from aiorwlock_remote._util.purge import FIRST_KEY, Key, Purger
from aiorwlock_remote.runtime.event_loop import current_event_loop

pytestmark = pytest.mark.anyio


class Table:
    """So many portions; whoever asks is counted, and may have to wait."""

    def __init__(self, portions: int) -> None:
        self.asked: list[Key] = []
        self.answers = anyio.Event()
        self.answers.set()
        self._portions = portions

    async def forget(self, after: Key) -> Key | None:
        self.asked.append(after)
        await self.answers.wait()
        return ("order", after[1] + 1) if after[1] < self._portions else None


@pytest.fixture(autouse=True)
def _restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "PAUSE_BETWEEN_REQUESTS", 0)
    monkeypatch.setattr(purge, "choice", max)


def over(forget: Callable[[Key], Awaitable[Key | None]]) -> Purger:
    return Purger(forget, current_event_loop().spawn)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.001)


async def test_on_from_where_the_last_portion_ended() -> None:
    table = Table(3)
    walk = over(table.forget)
    walk.begin(FIRST_KEY)
    await until(lambda: len(table.asked) == 4)
    await walk.end()
    assert table.asked == [FIRST_KEY, ("order", 1), ("order", 2), ("order", 3)]


async def test_only_one_at_a_time() -> None:
    """Who begins while a walk is under way leaves it to that; then there is another."""
    table = Table(0)
    table.answers = anyio.Event()
    walk = over(table.forget)
    walk.begin(FIRST_KEY)
    walk.begin(("other", 1))
    await until(lambda: table.asked == [FIRST_KEY])
    table.answers.set()
    await until(lambda: walk._over is None)
    walk.begin(("other", 1))
    await until(lambda: table.asked == [FIRST_KEY, ("other", 1)])
    await walk.end()


async def test_the_end_waits_for_what_is_under_way_alone() -> None:
    """Connections are closed next: no request may be left, nor another be made."""
    table = Table(1_000)
    table.answers = anyio.Event()
    walk, ended = over(table.forget), False
    walk.begin(FIRST_KEY)
    await until(lambda: table.asked == [FIRST_KEY])

    async def end() -> None:
        nonlocal ended
        await walk.end()
        ended = True

    async with anyio.create_task_group() as group:
        group.start_soon(end)
        await anyio.wait_all_tasks_blocked()
        assert not ended
        table.answers.set()
    assert table.asked == [FIRST_KEY]
    walk.begin(FIRST_KEY)
    await anyio.wait_all_tasks_blocked()
    assert table.asked == [FIRST_KEY]


async def test_a_rest_is_cut_short_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "PAUSE_BETWEEN_REQUESTS", 3600)
    table = Table(1_000)
    walk = over(table.forget)
    walk.begin(FIRST_KEY)
    await until(lambda: table.asked == [FIRST_KEY])
    with anyio.fail_after(30):
        await walk.end()


async def test_a_failed_purge_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As an event, not as a defect of ours; the next walk is another try."""
    tried = 0

    async def fail(_: Key) -> Key | None:
        nonlocal tried
        tried += 1
        raise BackendUnavailable(what="statement timeout", nothing_done=True)

    walk = over(fail)
    with caplog.at_level(logging.WARNING):
        walk.begin(FIRST_KEY)
        await until(lambda: tried == 1 and walk._over is None)
        walk.begin(FIRST_KEY)
        await until(lambda: tried == 2)
    await walk.end()
    assert [record.msg for record in caplog.records] == [
        "purge_failed error=%(error)s"
    ] * 2
