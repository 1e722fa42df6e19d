"""The lock outlives the transaction that a framework commits behind the handler."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import post as litestar_post
from litestar.di import Provide
from litestar.types import Scope as LitestarScope
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations import aiohttp as in_aiohttp
from aiorwlock_remote.integrations import fastapi as in_fastapi
from aiorwlock_remote.integrations import litestar as in_litestar
from aiorwlock_remote.integrations import starlette as in_starlette
from tests.integrations.bank import NAME, Bank, Transaction
from tests.integrations.fastapi_apps import started

pytestmark = pytest.mark.asyncio

Post = Callable[[], Any]
Site = Callable[[Bank], AbstractAsyncContextManager[Post]]


# -------------------------------------------------------------------- FastAPI


def fastapi_site(session: str, hold: str, order: str) -> Site:
    """A route with a session of one scope and a hold of another, in either order."""

    @asynccontextmanager
    async def site(bank: Bank) -> AsyncIterator[Post]:
        async def transaction() -> AsyncIterator[Transaction]:
            async for each in Transaction(bank).used():
                yield each

        scope: Any = session
        wanted: Any = hold
        in_session = Depends(transaction, scope=scope)
        locked: Any = in_fastapi.hold(NAME, scope=wanted)
        app = FastAPI()
        in_fastapi.add_locks(app, connect("memory://"))

        async def locked_last(
            session: Transaction = in_session, held: Held = locked
        ) -> None:
            session.pay(held)

        async def locked_first(
            held: Held = locked, session: Transaction = in_session
        ) -> None:
            session.pay(held)

        app.post("/{id}")(locked_first if order == "lock-session" else locked_last)
        async with started(app) as http:
            bank.locks = in_fastapi.get_locks(app)
            yield lambda: http.post("/7")

    return site


FASTAPI = {
    f"fastapi-{session}-{hold}-{order}": fastapi_site(session, hold, order)
    for session in ("request", "function")
    for hold in ("request", "function")
    for order in ("lock-session", "session-lock")
}


# ------------------------------------------------------------------ Starlette


class AroundTheResponse(BaseHTTPMiddleware):
    """Commits when the endpoint has returned its response."""

    def __init__(self, app: ASGIApp, bank: Bank) -> None:
        super().__init__(app)
        self.bank = bank

    async def dispatch(
        self, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        request.state.session = transaction = Transaction(self.bank)
        response = await call_next(request)
        await transaction.commit()
        return response


class AtTheStart:
    """Commits when the response begins."""

    def __init__(self, app: ASGIApp, bank: Bank) -> None:
        self.app = app
        self.bank = bank

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transaction = Transaction(self.bank)
        scope.setdefault("state", {})["session"] = transaction

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                await transaction.commit()
            await send(message)

        await self.app(scope, receive, sent)


class AtTheEnd(AtTheStart):
    """Commits when the application has ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transaction = Transaction(self.bank)
        scope.setdefault("state", {})["session"] = transaction
        await self.app(scope, receive, send)
        await transaction.commit()


def starlette_site(middleware: Any, scope: Any = "function") -> Site:  # noqa: ANN401
    @asynccontextmanager
    async def site(bank: Bank) -> AsyncIterator[Post]:
        @in_starlette.hold(NAME, scope=scope)
        async def pay(request: Request) -> Response:
            request.state.session.pay(in_starlette.get_held(request))
            return JSONResponse(None)

        app = Starlette(routes=[Route("/{id}", pay, methods=["POST"])])
        in_starlette.add_locks(app, connect("memory://"))
        app.add_middleware(middleware, bank=bank)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
        ):
            bank.locks = in_starlette.get_locks(app)
            yield lambda: http.post("/7")

    return site


STARLETTE = {
    "starlette-around": starlette_site(AroundTheResponse),
    "starlette-at-start": starlette_site(AtTheStart),
    "starlette-at-end": starlette_site(AtTheEnd, "request"),
}


# ------------------------------------------------------------------- Litestar


def litestar_site(how: str) -> Site:
    """Its session is committed by a hook or by a dependency."""

    @asynccontextmanager
    async def site(bank: Bank) -> AsyncIterator[Post]:
        async def depended(scope: LitestarScope) -> AsyncIterator[Transaction]:
            transaction = scope["state"]["session"] = Transaction(bank)
            yield transaction
            if how == "dependency":
                await transaction.commit()

        async def commits(message: dict[str, Any], scope: dict[str, Any]) -> None:
            # As advanced-alchemy's "autocommit".
            transaction = scope["state"].pop("session", None)
            begins = how == "hook" and message["type"] == "http.response.start"
            if begins and transaction is not None and message["status"] < 300:
                await transaction.commit()

        @litestar_post("/{id:int}", status_code=200)
        @in_litestar.hold(NAME)
        async def pay(
            request: LitestarRequest[Any, Any, Any],
            session: Annotated[Transaction, "by its name"],
        ) -> None:
            session.pay(in_litestar.get_held(request))

        app = Litestar(
            [pay],
            plugins=[in_litestar.add_locks(connect("memory://"))],
            dependencies={"session": Provide(depended)},
            before_send=[commits],  # type: ignore[list-item]
        )
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with (
            app.lifespan(),
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
        ):
            bank.locks = in_litestar.get_locks(app)
            yield lambda: http.post("/7")

    return site


LITESTAR = {
    "litestar-hook": litestar_site("hook"),
    "litestar-dependency": litestar_site("dependency"),
}


# -------------------------------------------------------------------- aiohttp


in_request: ContextVar[Transaction] = ContextVar("in_request")


class Answer:
    """What httpx's responses have, of one of aiohttp's client."""

    def __init__(self, status: int, headers: Any) -> None:  # noqa: ANN401
        self.status_code = status
        self.headers = headers


def aiohttp_site(where: str, returns: str = "") -> Site:
    """Its session is committed by a middleware, maybe of an outer application."""

    @asynccontextmanager
    async def site(bank: Bank) -> AsyncIterator[Post]:
        @web.middleware
        async def commits(request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401
            transaction = Transaction(bank)
            in_request.set(transaction)
            try:
                response: web.StreamResponse = await handler(request)
            except web.HTTPSuccessful:
                await transaction.commit()
                raise
            await transaction.commit()
            return response

        @in_aiohttp.hold(NAME)
        async def pay(request: web.Request) -> web.Response:
            in_request.get().pay(in_aiohttp.get_held(request))
            if returns == "raises":
                raise web.HTTPOk
            return web.Response()

        app = below = web.Application(middlewares=[commits])
        in_aiohttp.add_locks(app, connect("memory://"))
        if where == "outer":
            below = web.Application()
            in_aiohttp.add_locks(below, connect("memory://"))
        below.router.add_post("/{id}", pay)
        if below is not app:
            app.add_subapp("/below", below)

        async with TestClient(TestServer(app)) as http:
            bank.locks = in_aiohttp.get_locks(below)

            async def post() -> Answer:
                path = "/7" if below is app else "/below/7"
                async with http.post(path) as response:
                    return Answer(response.status, response.headers)

            yield post

    return site


AIOHTTP = {
    "aiohttp": aiohttp_site("here"),
    "aiohttp-outer": aiohttp_site("outer"),
    "aiohttp-raises": aiohttp_site("here", "raises"),
}

SITES = {**FASTAPI, **STARLETTE, **LITESTAR, **AIOHTTP}
every_site = pytest.mark.parametrize("site", SITES.values(), ids=SITES)


@every_site
async def test_no_update_is_lost(site: Site) -> None:
    """With the lock released before the commit, both requests read 0 and write 1."""
    bank = Bank()
    async with site(bank) as post:

        async def pay() -> int:
            status: int = (await post()).status_code
            return status

        await bank.two_pay(pay)
        assert await bank.free()


# The oldest Starlette's BaseHTTPMiddleware leaves a stream open if `send` fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@every_site
async def test_a_loss_before_the_commit_is_no_success(site: Site) -> None:
    bank = Bank()

    async def broken() -> None:
        assert bank.locks is not None
        async for seen in bank.locks.list():
            await bank.locks.force_release(seen, reason="test")

    bank.at_commit = broken
    async with site(bank) as post:
        answer = await post()
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"].startswith("application/problem+json")
    gc.collect()
