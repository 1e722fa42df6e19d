"""Looks from time to time, for as long as somebody wants them."""

from __future__ import annotations

import asyncio

import pytest

from aiorwlock_remote.runtime.event_loop import current_event_loop
from aiorwlock_remote.runtime.set_acquirer import PeriodicPoll


@pytest.mark.asyncio
async def test_polls_go_on_after_every_task_was_cancelled() -> None:
    """As soon as somebody else wants to be looked after."""
    looked = asyncio.Event()
    rounds = PeriodicPoll(current_event_loop(), 3600, looked.set)
    rounds.start()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert not looked.is_set()
    rounds._planned = 0.0  # its time has come
    rounds.start()
    await looked.wait()
    rounds.end()
