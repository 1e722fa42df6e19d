"""Signals that end a command cancel its work, and are remembered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import anyio
import pytest

from aiorwlock_remote.cli.signals import INTERRUPTS, Interrupt, not_ignored


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_all_are_taken() -> None:
    assert not_ignored(INTERRUPTS) == list(INTERRUPTS)


@pytest.mark.usefixtures("nohup")
def test_signals_that_are_ignored_stay_so() -> None:
    """As under nohup(1)."""
    assert not_ignored(INTERRUPTS) == [signal.SIGINT, signal.SIGTERM]
    assert not_ignored([signal.SIGHUP]) == []


@pytest.mark.anyio
@pytest.mark.parametrize("number", INTERRUPTS)
async def test_the_work_is_cancelled(number: signal.Signals) -> None:
    interrupt = Interrupt()
    async with anyio.create_task_group() as group:
        group.start_soon(interrupt.listen, group.cancel_scope)
        await anyio.wait_all_tasks_blocked()
        os.kill(os.getpid(), number)
        await anyio.sleep_forever()
    assert interrupt.by == number


@pytest.mark.anyio
async def test_where_all_are_ignored_nothing_ends_it() -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    try:
        interrupt = Interrupt()
        with anyio.CancelScope() as scope:
            await interrupt.listen(scope)
        assert interrupt.by is None
        assert not scope.cancel_called
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
