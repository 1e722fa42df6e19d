"""Hosts that tell when a socket can be read: in order, and no longer than wanted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from socket import socket, socketpair

import anyio
import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.runtime.event_loop import TaskEventLoop, current_event_loop

pytestmark = [pytest.mark.anyio]


@pytest.fixture
def pair() -> Iterator[tuple[socket, socket]]:
    near, far = socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


async def turns(event_loop: TaskEventLoop, number: int = 5) -> None:
    """The callbacks for all readable data have run."""
    for _ in range(number):
        turn: Pending[None] = Pending()
        event_loop.call_soon(turn.set_result, None)
        await turn


async def test_the_callback_runs_at_each_event_until_it_is_removed(
    pair: tuple[socket, socket],
) -> None:
    near, far = pair
    event_loop, got = current_event_loop(), list[bytes]()
    read = anyio.Event()

    def take() -> None:
        got.append(near.recv(100))
        read.set()

    ended = event_loop.reads(near, take)
    for word in (b"one", b"two"):
        read = anyio.Event()
        far.send(word)
        with anyio.fail_after(60):
            await read.wait()
    ended()
    far.send(b"three")
    await turns(event_loop)
    assert got == [b"one", b"two"]
    assert near.recv(100) == b"three"


async def test_ended_before_it_began_it_leaves_nothing(
    pair: tuple[socket, socket], caplog: pytest.LogCaptureFixture
) -> None:
    """The socket may be closed at once."""
    near, _ = pair
    event_loop = current_event_loop()
    with caplog.at_level(logging.ERROR):
        event_loop.reads(near, int)()
        near.close()
        await turns(event_loop)
    assert not caplog.records


@pytest.mark.only_on("trio", why="asyncio has a handler of its own for that")
async def test_a_callback_that_fails_runs_again(
    pair: tuple[socket, socket], caplog: pytest.LogCaptureFixture
) -> None:
    near, far = pair
    event_loop, got = current_event_loop(), list[bytes]()
    read = anyio.Event()

    def take() -> None:
        got.append(near.recv(1))
        if len(got) == 1:
            raise ValueError
        read.set()

    ended = event_loop.reads(near, take)
    far.send(b"ab")
    with anyio.fail_after(60):
        await read.wait()
    ended()
    assert got == [b"a", b"b"]
    assert "reader_failed" in caplog.text


async def test_the_end_of_a_turn_comes_after_what_is_ready_in_it() -> None:
    event_loop, order = current_event_loop(), list[str]()
    done: Pending[None] = Pending()

    def end() -> None:
        order.append("end")
        done.set_result(None)

    async def task() -> None:
        if not order:
            event_loop.at_end(end)
        order.append("ready")

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(task)
        await done
    assert order == ["ready", "ready", "ready", "end"]
