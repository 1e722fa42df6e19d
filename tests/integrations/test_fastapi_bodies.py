"""Bodies of requests that wait for a lock, without a server, on every loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated

import anyio
import pytest
from anyio.abc import TaskGroup
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from aiorwlock_remote import Held, LockLost, connect
from aiorwlock_remote.integrations._asgi import MAX_READ_AHEAD, MESSAGE_SIZE
from aiorwlock_remote.integrations.fastapi import LocksDep, add_locks, get_locks, hold
from tests.integrations.asgi_connection import LEAVES, Line, part, parts, scope_of
from tests.integrations.fastapi_apps import waiting

pytestmark = pytest.mark.anyio

Next = Callable[[Request], Awaitable[Response]]


class Shop:
    """An application whose handler reads its body on demand."""

    def __init__(self) -> None:
        self.app = FastAPI()
        add_locks(self.app, connect("memory://"))
        self.inside = anyio.Event()
        self.read_on = anyio.Event()
        self.read: list[bytes] = []

        @self.app.post("/orders/{id}")
        async def post(
            request: Request, held: Annotated[Held, hold("order:{id}", timeout=300)]
        ) -> str:
            self.inside.set()
            await self.read_on.wait()
            async for chunk in request.stream():
                self.read.append(chunk)
            return held.resource

    @asynccontextmanager
    async def served(self) -> AsyncIterator[TaskGroup]:
        """For the tasks of clients, which end before it stops."""
        async with (
            self.app.router.lifespan_context(self.app),
            anyio.create_task_group() as clients,
        ):
            yield clients

    def held(self) -> AbstractAsyncContextManager[Held]:
        """By another."""
        return get_locks(self.app).mutex("order", 7)


async def calls(shop: Shop, line: Line, *headers: tuple[bytes, bytes]) -> None:
    await line.calls(shop.app, scope_of("/orders/7", *headers))


async def test_no_receive_is_cancelled() -> None:
    shop, line = Shop(), Line()
    async with shop.served() as clients:
        clients.start_soon(calls, shop, line)
        await shop.inside.wait()
        line.sends(part(b"abc"), part(b"def", more=False))
        shop.read_on.set()
        await anyio.wait_all_tasks_blocked()
        assert line.cancelled == 0
    assert shop.read == [b"abc", b"def", b""]
    assert (line.status, line.most_at_once) == (200, 1)


async def test_messages_come_once_and_in_order() -> None:
    """Errors, too, as of a middleware that finds the body too large."""
    shop, line = Shop(), Line(part(b"1"), part(b"2"))

    async def meets_the_error() -> None:
        with pytest.raises(OSError, match="too large"):
            await calls(shop, line)

    async with shop.served() as clients:
        async with shop.held():
            clients.start_soon(meets_the_error)
            await waiting(shop.app, 1)
            line.sends(part(b"3"), OSError("too large"))
            await anyio.wait_all_tasks_blocked()
            line.sends(part(b"never asked for"))
        shop.read_on.set()
    assert shop.read == [b"1", b"2", b"3"]
    assert (line.taken, line.most_at_once) == (4, 1)


@pytest.mark.parametrize(("size", "count"), [(1, 1000), (1400, 1000), (300_000, 3)])
async def test_the_body_read_ahead_is_bounded(size: int, count: int) -> None:
    shop, line = Shop(), Line(*parts(size, count))
    most = MAX_READ_AHEAD // (size + MESSAGE_SIZE) + 1
    async with shop.served() as clients:
        async with shop.held():
            clients.start_soon(calls, shop, line)
            await waiting(shop.app, 1)
            await anyio.wait_all_tasks_blocked()
            assert line.taken == most
        shop.read_on.set()
        line.sends(part(b"end", more=False))
    sent = [message["body"] for message in parts(size, count)]
    assert shop.read == [*sent, b"end", b""]


@pytest.mark.parametrize("more", [True, False])
async def test_a_disconnect_is_noticed_within_the_body(*, more: bool) -> None:
    shop, line = Shop(), Line(part(b"abc", more=more))
    async with shop.served() as clients, shop.held():
        clients.start_soon(calls, shop, line)
        await waiting(shop.app, 1)
        line.sends(LEAVES)
        await waiting(shop.app, 0)
    assert line.status == 499
    assert not shop.inside.is_set()


async def test_a_disconnected_client_waits_for_no_lock() -> None:
    """The application has read that already; some servers say it only once."""
    shop, line = Shop(), Line(LEAVES)

    @shop.app.middleware("http")
    async def reads_first(request: Request, call_next: Next) -> Response:
        assert (await request.receive())["type"] == "http.disconnect"
        return await call_next(request)

    async with shop.served(), shop.held():
        await calls(shop, line)
    assert not shop.inside.is_set()


async def test_no_body_is_invited_by_waiting() -> None:
    shop, line = Shop(), Line()
    async with shop.served() as clients:
        async with shop.held():
            clients.start_soon(calls, shop, line, (b"expect", b"100-continue"))
            await waiting(shop.app, 1)
            await anyio.wait_all_tasks_blocked()
            assert line.asked == 0
        shop.read_on.set()
        line.sends(part(b"abc", more=False))
    assert shop.read == [b"abc", b""]


async def test_a_middleware_reads_what_the_handler_left() -> None:
    shop, line = Shop(), Line(part(b"abc", more=False))
    read: list[bytes] = []

    @shop.app.middleware("http")
    async def reads_last(request: Request, call_next: Next) -> Response:
        response = await call_next(request)
        read.append(await request.body())
        return response

    @shop.app.post("/unread/{id}")
    async def unread(held: Annotated[Held, hold("order:{id}", timeout=300)]) -> str:
        return held.resource

    async with shop.served() as clients, shop.held():
        clients.start_soon(line.calls, shop.app, scope_of("/unread/7"))
        await waiting(shop.app, 1)
        await anyio.wait_all_tasks_blocked()
    assert line.status == 200
    assert read == [b"abc"]


# Starlette before 1.0 leaves its own generator to trio's collector of garbage.
@pytest.mark.filterwarnings(
    "ignore:.*Request.stream:pytest.PytestUnraisableExceptionWarning"
)
async def test_a_stream_is_cut_off_through_any_middleware() -> None:
    """BaseHTTPMiddleware ends every stream properly, those of errors, too."""
    shop, line = Shop(), Line(part(b"", more=False))

    @shop.app.middleware("http")
    async def through(request: Request, call_next: Next) -> Response:
        return await call_next(request)

    @shop.app.post("/streams/{id}")
    async def stream(
        held: Annotated[Held, hold("order:{id}", scope="request")], locks: LocksDep
    ) -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b"begun"
            async for seen in locks.list():
                await locks.force_release(seen, reason="test")
            with pytest.raises(LockLost):
                await held.extend()
            await anyio.sleep_forever()

        return StreamingResponse(lines())

    async with shop.app.router.lifespan_context(shop.app):
        with pytest.raises(LockLost):
            await line.calls(shop.app, scope_of("/streams/7"))
    assert line.body == b"begun"
    assert all(message.get("more_body", True) for message in line.answer)
