"""Until when a hold keeps its lock, and the error if the lock is lost meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aiorwlock_remote import ConfigurationError, Held, LockLost, connect
from aiorwlock_remote.integrations import fastapi as in_fastapi
from aiorwlock_remote.integrations import litestar as in_litestar
from aiorwlock_remote.integrations import starlette as in_starlette
from aiorwlock_remote.integrations._asgi import HoldScope
from tests.integrations.asgi_connection import LEAVES, Line, scope_of
from tests.integrations.bank import NAME, Bank, Transaction
from tests.integrations.fastapi_apps import started

pytestmark = pytest.mark.asyncio

Locked = Annotated[Held, in_fastapi.hold(NAME)]
Handler = Callable[[Request], Any]


@asynccontextmanager
async def starlette(
    bank: Bank, handler: Handler, scope: HoldScope = "function"
) -> AsyncIterator[Starlette]:
    held = in_starlette.hold(NAME, scope=scope)(handler)
    app = Starlette(routes=[Route("/{id}", held, methods=["POST"])])
    in_starlette.add_locks(app, connect("memory://"))
    async with app.router.lifespan_context(app):
        bank.locks = in_starlette.get_locks(app)
        yield app


def committed(bank: Bank, scope: Any = None) -> Any:  # noqa: ANN401
    async def transaction() -> AsyncIterator[Transaction]:
        async for each in Transaction(bank).used():
            yield each

    return Depends(transaction, scope=scope)


@asynccontextmanager
async def fastapi(
    bank: Bank,
    dependency: Any,  # noqa: ANN401 - of FastAPI
    app: FastAPI | None = None,
) -> AsyncIterator[FastAPI]:
    """Run an application that pays in the transaction of this dependency."""
    app = FastAPI() if app is None else app
    in_fastapi.add_locks(app, connect("memory://"))

    @app.post("/{id}")
    async def pay(
        tasks: BackgroundTasks, held: Locked, session: Transaction = dependency
    ) -> None:
        session.pay(held)
        tasks.add_task(bank.look)

    async with app.router.lifespan_context(app):
        bank.locks = in_fastapi.get_locks(app)
        yield app


async def broken(bank: Bank) -> None:
    assert bank.locks is not None
    async for seen in bank.locks.list():
        await bank.locks.force_release(seen, reason="test")


async def broken_and_noticed(bank: Bank) -> None:
    """End the lock, and let its loss be found before this returns."""
    await broken(bank)
    assert bank.held is not None
    with pytest.raises(LockLost):
        await bank.held.extend()


async def post(app: ASGIApp, path: str = "/7") -> Line:
    line = Line({"type": "http.request", "body": b""})
    await line.calls(app, scope_of(path))
    return line


# --------------------------------------------------- streams, background tasks


@pytest.mark.parametrize("scope", ["function", "request"])
async def test_a_stream_and_its_background_task(scope: HoldScope) -> None:
    bank = Bank()

    async def stream(_: Request) -> Response:
        async def body() -> AsyncIterator[str]:
            await bank.look()
            yield "part"

        return StreamingResponse(body(), background=BackgroundTask(bank.look))

    async with starlette(bank, stream, scope) as app:
        assert (await post(app)).body == b"part"
        assert await bank.free()
    assert bank.looked == [scope == "function"] * 2


async def test_a_stream_begins_at_once_though_its_end_is_kept_back() -> None:
    bank = Bank()
    seen: list[int] = []
    line = Line({"type": "http.request", "body": b""})

    async def stream(_: Request) -> Response:
        async def body() -> AsyncIterator[str]:
            seen.append(len(line.answer))
            yield "part"
            seen.append(len(line.answer))

        return StreamingResponse(body())

    async with starlette(bank, stream, "request") as app:
        await line.calls(app, scope_of("/7"))
    assert seen == [1, 2]
    assert [each.get("more_body") for each in line.answer] == [None, True, False]


async def test_fastapis_background_task_runs_behind_the_release() -> None:
    bank = Bank()
    bank.at_commit = bank.look
    async with fastapi(bank, committed(bank, "function")) as app:
        assert (await post(app)).status == 200
    assert bank.looked == [False, True]


# ------------------------------------------------------------- losses, errors


async def test_a_loss_cancels_the_commit() -> None:
    """It ends in a 503, and nothing was committed."""
    bank = Bank()

    async def commit() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broken_and_noticed, bank)
            await anyio.sleep_forever()

    bank.at_commit = commit

    class Committing:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("state", {})["session"] = transaction = Transaction(bank)

            async def sent(message: Any) -> None:  # noqa: ANN401
                await transaction.commit()
                await send(message)

            await self.app(scope, receive, sent)

    async def pay(request: Request) -> Response:
        request.state.session.pay(in_starlette.get_held(request))
        return JSONResponse(None)

    async with starlette(bank, pay) as app:
        app.add_middleware(Committing)
        assert (await post(app)).status == 503
        assert bank.total == 0


async def test_a_loss_in_a_stream_cuts_it_off() -> None:
    bank = Bank()

    async def stream(request: Request) -> Response:
        bank.held = in_starlette.get_held(request)

        async def body() -> AsyncIterator[str]:
            yield "part"
            await broken_and_noticed(bank)
            await anyio.sleep_forever()

        return StreamingResponse(body())

    async with starlette(bank, stream, "request") as app:
        line = Line({"type": "http.request", "body": b""})
        with pytest.raises(LockLost):
            await line.calls(app, scope_of("/7"))
    assert [each.get("more_body") for each in line.answer] == [None, True]


async def test_a_browser_may_read_the_answer_to_a_loss() -> None:
    bank = Bank()

    async def pay(_: Request) -> Response:
        await broken(bank)
        headers = {"Access-Control-Allow-Origin": "*", "Set-Cookie": "paid=1"}
        return JSONResponse(None, headers=headers)

    async with starlette(bank, pay) as app:
        line = await post(app)
    headers = dict(line.answer[0]["headers"])
    assert line.status == 503
    assert headers[b"access-control-allow-origin"] == b"*"
    assert b"set-cookie" not in headers


@pytest.mark.parametrize("scope", ["function", "request"])
async def test_an_error_of_the_commit_goes_before_a_loss(scope: str) -> None:
    bank = Bank()

    async def fails() -> None:
        await broken(bank)
        raise ZeroDivisionError

    bank.at_commit = fails
    line = Line({"type": "http.request", "body": b""})
    async with fastapi(bank, committed(bank, scope)) as app:
        with pytest.raises(ZeroDivisionError):
            await line.calls(app, scope_of("/7"))
        # Nothing of a success: the server answers 500 if the application did not.
        assert [each["status"] for each in line.answer[:1]] in ([], [500])
        assert await bank.free()


async def test_a_refusal_by_the_handler_stays_though_the_lock_is_lost() -> None:
    bank = Bank()
    app = FastAPI()
    in_fastapi.add_locks(app, connect("memory://"))

    @app.post("/{id}")
    async def pay(held: Locked) -> None:
        await broken(bank)
        raise HTTPException(410, held.resource)

    async with started(app) as http:
        bank.locks = in_fastapi.get_locks(app)
        assert (await http.post("/7")).status_code == 410


async def test_a_server_that_cancels_a_request_in_its_commit() -> None:
    bank = Bank()
    reached = asyncio.Event()

    async def commit() -> None:
        reached.set()
        await anyio.sleep_forever()

    bank.at_commit = commit
    async with fastapi(bank, committed(bank, "function")) as app:
        request = asyncio.create_task(post(app))
        await reached.wait()
        assert not await bank.free()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert bank.locks is not None
        async with bank.locks.mutex("account", 7).acquire(timeout=30):
            assert bank.total == 0


async def test_a_client_that_leaves_does_not_end_the_commit() -> None:
    bank = Bank()
    line = Line({"type": "http.request", "body": b""})

    async def leaves() -> None:
        line.sends(LEAVES)
        await anyio.lowlevel.checkpoint()

    bank.at_commit = leaves
    async with fastapi(bank, committed(bank)) as app:
        await line.calls(app, scope_of("/7"))
        assert (line.status, bank.total) == (200, 1)
        assert await bank.free()


# ------------------------------------------------------- websockets and mounts


@pytest.mark.parametrize("loss", [False, True])
async def test_the_lock_of_a_websocket_outlives_its_commit(
    loss: bool,
) -> None:
    bank = Bank()

    async def look() -> None:
        await bank.look()
        if loss:
            await broken(bank)

    bank.at_commit = look
    app = FastAPI()
    in_fastapi.add_locks(app, connect("memory://"))

    @app.websocket("/{id}")
    async def talk(
        ws: WebSocket,
        held: Locked,
        session: Transaction = committed(bank),  # noqa: B008
    ) -> None:
        await ws.accept()
        session.pay(held)

    line = Line({"type": "websocket.connect"})
    async with started(app):
        bank.locks = in_fastapi.get_locks(app)
        await line.calls(app, scope_of("/7", type="websocket", subprotocols=[]))
        assert await bank.free()
    assert bank.looked == [False]
    assert [each.get("code") for each in line.answer] == [None, *[1013] * loss]


async def test_a_mounted_application_leaves_the_release_to_the_outer_one() -> None:
    bank = Bank()
    bank.at_commit = bank.look
    below = FastAPI()
    in_fastapi.add_locks(below, connect("memory://"))

    @below.post("/{id}")
    async def pay(
        request: Request,
        held: Locked,
    ) -> None:
        request.state.session.pay(held)

    @asynccontextmanager
    async def both(_: FastAPI) -> AsyncIterator[None]:
        async with below.router.lifespan_context(below):
            yield

    app = FastAPI(lifespan=both)
    in_fastapi.add_locks(app, connect("memory://"))
    app.mount("/below", below)

    @app.middleware("http")
    async def commits(request: Request, call_next: Any) -> Response:  # noqa: ANN401
        request.state.session = transaction = Transaction(bank)
        response: Response = await call_next(request)
        await transaction.commit()
        return response

    async with started(app) as http:
        bank.locks = in_fastapi.get_locks(below)
        assert (await http.post("/below/7")).status_code == 200
    assert (bank.looked, bank.total) == ([False], 1)


# ------------------------------------------------------ what FastAPI learns


async def test_a_dependency_that_ends_behind_the_answer_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bank = Bank()
    app = FastAPI()
    in_fastapi.add_locks(app, connect("memory://"))
    in_function = committed(bank, "function")
    asked_for: Any = in_fastapi.hold(NAME, scope="request")
    late = committed(bank)

    @app.post("/early/{id}")
    async def early(held: Locked, session: Transaction = in_function) -> None: ...

    @app.post("/asked/{id}")
    async def asked(held: Held = asked_for, session: Transaction = late) -> None: ...

    with caplog.at_level(logging.WARNING, "aiorwlock_remote.http"):
        async with started(app):
            assert caplog.records == []

        @app.post("/late/{id}")
        async def named(held: Locked, session: Transaction = late) -> None: ...

        async with started(app):
            (record,) = caplog.records
    assert record.message.startswith("held_to_the_end")
    assert "/late/{id}" in record.message
    assert "committed.<locals>.transaction" in record.message


async def test_an_override_that_ends_behind_the_answer() -> None:
    bank = Bank()

    async def plain() -> Transaction:
        return Transaction(bank)

    bank.at_commit = bank.look
    app = FastAPI()
    app.dependency_overrides[plain] = committed(bank).dependency
    async with fastapi(bank, Depends(plain), app):
        assert (await post(app)).status == 200
    assert bank.looked[0] is False


@pytest.mark.parametrize("module", [in_fastapi, in_starlette, in_litestar])
async def test_a_scope_that_does_not_exist(module: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match="'function' or 'request', not 'app'"):
        module.hold(NAME, scope="app")
