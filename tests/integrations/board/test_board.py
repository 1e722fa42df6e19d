"""One look at the store for all viewers of the page, and none without a viewer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.integrations.board import board as boards
from aiorwlock_remote.integrations.board.board import Board
from aiorwlock_remote.integrations.board.model import row_key
from aiorwlock_remote.locks.changes import StoreScanner
from tests.cli.watch.fix_watch import holder, order
from tests.integrations.board.fix_board import TIMEOUT, FakeStore, until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once, and nobody lingers."""
    monkeypatch.setattr(boards, "MIN_INTERVAL", 0.0)
    monkeypatch.setattr(boards, "LINGER", 0.0)


async def next_message(stream: AsyncIterator[bytes]) -> dict[str, Any]:
    """The next message to a viewer."""
    async with asyncio.timeout(TIMEOUT):
        async for chunk in stream:
            if b"\ndata: " in chunk:
                message: dict[str, Any] = json.loads(chunk.partition(b"\ndata: ")[2])
                return message
    raise AssertionError("the stream has ended")


async def another_scan(store: FakeStore) -> None:
    before = store.scans
    await until(lambda: store.scans > before)


async def until_closed(store: FakeStore, times: int = 1) -> None:
    await until(lambda: store.closed >= times)


@pytest.mark.usefixtures("often")
async def test_nobody_looks_without_a_viewer() -> None:
    store = FakeStore(order(1, holder()))
    board = Board(store, every=0.001)
    await asyncio.sleep(0.01)
    assert store.scans == 0
    async with board.viewing():
        message = await next_message(board.messages())
        assert [row["name"] for row in message["rows"]] == ["order/1"]
        await until(lambda: store.scans >= 5)
    await until_closed(store)
    scans = store.scans
    await asyncio.sleep(0.05)
    assert store.scans == scans
    # Whoever comes back sees the time without a look as a gap, as before the first.
    async with board.viewing():
        stream = board.messages()
        message = await next_message(stream)
        while len(message.get("gaps", ())) < 2:
            message = await next_message(stream)


@pytest.mark.usefixtures("often")
async def test_a_thousand_messages_to_many_viewers_are_one_look_each() -> None:
    store = FakeStore(order(1, holder()))
    board = Board(store, every=0.001)
    async with board.viewing():
        streams = [board.messages() for _ in range(50)]
        await asyncio.gather(*(next_message(stream) for stream in streams))
        before = store.scans
        await asyncio.gather(*(next_message(stream) for stream in streams))
        assert store.scans - before < len(streams)


async def test_a_viewer_that_comes_back_makes_no_look_of_its_own() -> None:
    store = FakeStore()
    board = Board(store, every=60.0)
    for _ in range(20):
        async with board.viewing():
            await next_message(board.messages())
            # A second viewer at the same time, and one that reloads.
            async with board.viewing():
                await next_message(board.messages())
    assert store.scans <= 20
    async with board.viewing():
        await next_message(board.messages())
        before = store.scans
        for _ in range(20):
            async with board.viewing():
                await next_message(board.messages())
        assert store.scans == before
    await board.aclose()


@pytest.mark.usefixtures("often")
async def test_a_slow_viewer_gets_the_newest_state_and_delays_nobody() -> None:
    store = FakeStore(order(1, holder()))
    board = Board(store, every=0.001)
    async with board.viewing():
        slow, quick = board.messages(), board.messages()
        first = await next_message(slow)
        for fence in range(100):
            store.found = [order(1, holder(fence=fence))]
            message = await next_message(quick)
            while message["rows"] == [] or message["rows"][0]["holders"][0][
                "fence"
            ] != str(fence):
                message = await next_message(quick)
        # A hundred changes later: one message, with the last of them.
        message = await next_message(slow)
        assert message["seq"] - first["seq"] >= 100
        assert message["rows"][0]["holders"][0]["fence"] == "99"
        assert message["full"] is False


@pytest.mark.usefixtures("often")
async def test_viewers_that_do_not_read_cost_no_message_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newcomers share one first message, whose parts are small; then comes the rest."""
    store = FakeStore(*(order(number, holder()) for number in range(1000)))
    board = Board(store, every=0.001)
    encoded = Mock(wraps=board._model.encoded)
    monkeypatch.setattr(board._model, "encoded", encoded)
    async with board.viewing():
        for number in range(5):
            await another_scan(store)
            store.found[number] = order(number, holder(fence=99))
            stream = board.messages()
            parts = [await anext(stream)]
            while parts[-1] != b"\n\n":
                parts.append(await anext(stream))
                assert len(parts[-1]) <= boards.CHUNK
            text = b"".join(parts).partition(b"\ndata: ")[2]
            known = {row["row"]: row for row in json.loads(text)["rows"]}
            assert len(known) == 1000
            changed = row_key(resource("order", number))
            while known[changed]["holders"][0]["fence"] != "99":
                known |= {
                    row["row"]: row for row in (await next_message(stream))["rows"]
                }
    assert [call.args[0] for call in encoded.call_args_list].count(0) == 1
    await board.aclose()
    assert (board._snapshot, board._encoded) == (None, {})


async def test_a_viewer_that_takes_no_message_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(boards, "SEND_TIMEOUT", 0.01)
    caplog.set_level("INFO", "aiorwlock_remote.board")
    board = Board(FakeStore(order(1, holder())), every=0.2)
    async with asyncio.timeout(TIMEOUT):
        async with board.stream() as messages:
            async for chunk in messages:
                if b"order/1" in chunk:
                    await asyncio.Event().wait()  # as a full buffer of a socket
        # While nothing is being sent, time does not count.
        async with board.stream() as messages:
            await next_message(messages)
            with anyio.move_on_after(0.05):
                await anext(messages)
    assert board.viewers == 0
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "board_viewer_dropped"
    ]
    await board.aclose()


@pytest.mark.usefixtures("often")
async def test_a_viewer_that_reconnects_continues() -> None:
    store = FakeStore(order(1, holder()))
    board = Board(store, every=0.001)
    async with board.viewing():
        chunks = board.messages()
        await anext(chunks)
        identity = (await anext(chunks)).partition(b"\n")[0].decode()[4:]
        assert (await next_message(board.messages(identity)))["full"] is False
        other = Board(FakeStore(), every=0.2)
        async with other.viewing():
            assert (await next_message(other.messages(identity)))["full"] is True
        await other.aclose()
        for strange in ("", "x", "-", f"{identity}x", "é-1", identity[:9] + "9" * 400):
            assert (await next_message(board.messages(strange)))["full"] is True


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "error", [BackendUnavailable(what="refused"), OSError("gone"), ZeroDivisionError()]
)
async def test_a_store_that_is_away_is_reported_and_asked_again(
    error: Exception,
) -> None:
    store = FakeStore(order(1, holder()))
    store.error = error
    board = Board(store, every=0.001)
    async with board.viewing():
        stream = board.messages()
        message = await next_message(stream)
        assert (message["trouble"], message["asOf"]) == (str(error), None)
        store.error = None
        while message["trouble"] or not message["rows"]:
            message = await next_message(stream)
        store.error = error
        while not message["troubleSince"]:
            message = await next_message(stream)
        assert message["asOf"] is not None


async def test_a_stop_ends_every_stream_and_the_looks() -> None:
    store = FakeStore()
    store.may_answer = anyio.Event()
    board = Board(store, every=0.2)

    async def view() -> None:
        async with board.viewing():
            async for _ in board.messages():
                pass

    viewers = [asyncio.create_task(view()) for _ in range(20)]
    await until(lambda: store.scans)
    board.stop()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*viewers)
        await view()
    await until_closed(store)
    await board.aclose()
    assert store.scans == 1


async def test_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "KEEP_ALIVE", 0.01)
    store = FakeStore()
    store.may_answer = anyio.Event()
    board = Board(store, every=0.2)
    async with board.viewing():
        stream = board.messages()
        assert await anext(stream) == b"retry: 1500\n\n"
        assert await anext(stream) == b"event: alive\ndata: 1\n\n"
    await board.aclose()


KEY = row_key(resource("order", 1))


async def test_ending_a_grant_ends_the_one_that_was_seen() -> None:
    mine, other = holder(), holder("b", mode="read")
    store = FakeStore(order(1, mine, other))
    board = Board(store, every=60.0)
    async with board.viewing():
        stream = board.messages()
        await next_message(stream)
        for key, name, fence in (
            (KEY, mine.holder, "8"),
            (KEY, "x" * 12, "7"),
            (row_key(resource("order", 2)), mine.holder, "7"),
            ("", mine.holder, None),
        ):
            assert not await board.end_grant(key, name, fence, "why")
        assert await board.end_grant(KEY, mine.holder, "7", "why")
        # The next look follows at once.
        store.found = []
        message = await next_message(stream)
        while not message["rows"]:
            message = await next_message(stream)
    ((seen, reason),) = store.ended
    assert (seen.holders, reason) == ((mine,), "why")
    await board.aclose()


async def test_a_board_ends_what_another_one_shows() -> None:
    """Of another process: nobody looks at the page of this one."""
    store = FakeStore(order(1, holder()))
    board = Board(store, every=60.0)
    assert await board.end_grant(KEY, holder().holder, "7", "why")
    assert len(store.ended) == 1
    # It scanned the store before the holder came that the other board has seen since.
    async with board.viewing():
        await next_message(board.messages())
        store.found = [order(1, holder("b", fence=8))]
        assert await board.end_grant(KEY, holder("b").holder, "8", "why")
    await board.aclose()


async def test_a_scan_under_way_does_not_hide_a_newer_holder() -> None:
    store = FakeStore()
    store.may_answer = anyio.Event()
    board = Board(store, every=60.0)
    ending = asyncio.create_task(board.end_grant(KEY, holder().holder, "7", "why"))
    await until(lambda: store.scans == 1)
    answer, store.may_answer = store.may_answer, None
    store.found = [order(1, holder())]
    answer.set()
    assert await ending
    await board.aclose()


async def test_nothing_is_ended_in_a_store_that_is_away_or_by_a_board_that_ends() -> (
    None
):
    store = FakeStore(order(1, holder()))
    store.error = BackendUnavailable(what="refused")
    board = Board(store, every=60.0)
    with pytest.raises(BackendUnavailable, match="refused"):
        await board.end_grant(KEY, holder().holder, "7", "why")
    await board.aclose()
    store.error, store.may_answer = None, anyio.Event()
    board = Board(store, every=60.0)
    ending = asyncio.create_task(board.end_grant(KEY, "x" * 12, "7", "why"))
    await until(lambda: store.at_once)
    board.stop()
    for request in (ending, board.end_grant(KEY, holder().holder, "7", "why")):
        with pytest.raises(BackendUnavailable, match="ending"):
            await request
    assert store.ended == []
    await board.aclose()


async def test_a_store_that_is_opened_for_the_page() -> None:
    store = StoreScanner(connect("memory://opened"))
    with pytest.raises(BackendUnavailable):
        await store.force_release(order(1, holder()), "why")
    for _ in range(2):
        assert await store.scan() == []
        await store.aclose()
    await store.aclose()


async def test_a_store_that_is_lent_stays_open() -> None:
    async with connect("memory://lent") as locks, locks.mutex("order", 1):
        store = StoreScanner(lambda: locks)
        (seen,) = await store.scan()
        await store.aclose()
        assert seen.target.label == "order/1"
        assert await locks.mutex("order", 1).locked()


async def test_a_board_works_in_one_event_loop_after_the_other() -> None:
    store = FakeStore(order(1, holder()))
    board = Board(store, every=0.2)

    async def look() -> None:
        async with board.viewing(), aclosing(board.messages()) as messages:
            async for chunk in messages:
                if b"order/1" in chunk:
                    return

    for backend in ("asyncio", "trio", "asyncio"):
        await asyncio.to_thread(partial(anyio.run, look, backend=backend))
    assert store.closed == 3
