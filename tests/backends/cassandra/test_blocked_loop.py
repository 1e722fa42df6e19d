"""The loop that has asked is blocked: others, and what it asked, go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from cassandra.cluster import DefaultConnection

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.opening import HEARTBEAT, HEARTBEAT_TIMEOUT
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.session_client import APPLIED, Request
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.ports import CallbackThread
from aiorwlock_remote.runtime.event_loop import SystemClock, current_event_loop

pytestmark = [pytest.mark.anyio]

KEY = ("order", 42)
PATIENCE = 60.0


def appear(table: Table) -> Request:
    return table.request("insert", "gluww", 1000, uuid4(), "{}", 5, *KEY)


def block(seconds: float) -> None:
    """As code that should not be in a loop does."""
    time.sleep(seconds)


async def test_another_thread_is_answered(table: Table) -> None:
    """As the keeper is, which renews for as long as the loop is blocked."""
    asked = list[Pending[object]]()

    def other() -> None:
        host = CallbackThread(SystemClock())
        pending = table.ask(host, appear(table))
        asked.append(pending)  # type: ignore[arg-type]
        host.run(pending.done, host.clock.now() + PATIENCE)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(PATIENCE)
    (pending,) = asked
    assert pending.done()
    assert pending.error is None


async def test_an_answer_that_lies_there_is_not_late(
    layout: str, options: Options
) -> None:
    assert layout
    hasty = replace(options, request_timeout=1.0)
    table = await opening.connect(hasty, current_event_loop())
    try:
        pending = table.ask(current_event_loop(), appear(table))
        block(1.5)
        rows = await pending
        assert rows[0][APPLIED] is True
    finally:
        table.close()


@pytest.mark.slow
async def test_no_connection_is_given_up(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeats of the driver are answered."""
    given_up = list[object]()
    given = DefaultConnection.defunct

    def defunct(connection: object, exc: object) -> object:
        given_up.append(exc)
        return given(connection, exc)

    monkeypatch.setattr(DefaultConnection, "defunct", defunct)
    block(3 * (HEARTBEAT + HEARTBEAT_TIMEOUT))
    assert given_up == []
    rows = await table.ask(current_event_loop(), appear(table))
    assert rows[0][APPLIED] is True


@pytest.mark.only_on("asyncio", why="descriptors and threads are the process's")
async def test_closed_it_leaves_nothing(
    create: Callable[[str], None], options: Options
) -> None:
    create("pair")
    others = helpers()
    (await opening.connect(options, current_event_loop())).close()
    await settled(others)
    before = sockets()
    for _ in range(3):
        (await opening.connect(options, current_event_loop())).close()
    await settled(others)
    assert sockets() <= before
    assert helpers() <= others


@pytest.mark.only_on("asyncio", why="threads are the process's")
async def test_one_that_was_never_made_leaves_no_thread() -> None:
    nowhere = Options("locks", ("nowhere.invalid",), connect_timeout=20.0)
    others = helpers()
    with pytest.raises(BackendUnavailable):
        await opening.connect(nowhere, current_event_loop())
    await settled(others)
    assert helpers() <= others


async def settled(others: set[threading.Thread]) -> None:
    """What is to be done soon has been done, and threads that were to end have."""
    host = current_event_loop()
    for _ in range(3):
        turn: Pending[None] = Pending()
        host.call_soon(turn.set_result, None)
        await turn
    for helper in helpers() - others:
        helper.join(PATIENCE)


def helpers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name == "aiorwlock_remote cassandra"}


def sockets() -> int:
    """How many are open in this process."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += str(descriptor.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue  # that of the directory itself
    return found
