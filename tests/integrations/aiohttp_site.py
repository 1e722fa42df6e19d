"""The test application in aiohttp."""

from __future__ import annotations

from aiohttp import web

from aiorwlock_remote import Connecting, StaleFence
from aiorwlock_remote.integrations.aiohttp import (
    add_locks,
    get_fence,
    get_held,
    get_locks,
    hold,
)
from tests.integrations.account import Account

writing = hold("invoice:{id:int}", timeout=300, reason="secret")
reading = hold("invoice:{id:int}", mode="read", timeout=300)
briefly = hold("invoice:{id:int}", timeout=0.2, reason="secret")


def make(connecting: Connecting, account: Account) -> web.Application:
    """Every way in that the tests need."""
    routes = web.RouteTableDef()

    @routes.post("/invoices/{id}/pay")
    @writing
    async def pay(request: web.Request) -> web.Response:
        get_held(request).check()
        paid = await account.pay(float(request.query.get("work", "0")))
        return web.json_response({"paid": paid})

    @routes.view("/invoices/{id}/stay")
    class Stay(web.View):
        @reading
        async def get(self) -> web.Response:
            return await self._stay()

        @writing
        async def post(self) -> web.Response:
            return await self._stay()

        async def _stay(self) -> web.Response:
            await account.stay()
            return web.json_response({"fence": get_held(self.request).fence})

    @routes.post("/invoices/{id}/brief")
    @briefly
    async def brief(request: web.Request) -> web.Response:
        return web.json_response({"fence": get_held(request).fence})

    @routes.post("/invoices/{id}/stream")
    @writing
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"{get_held(request).fence}\n".encode())
        await account.stay()
        await response.write(b"end\n")
        return response

    @routes.post("/invoices/{id}/gone")
    @writing
    async def gone(request: web.Request) -> web.Response:
        raise web.HTTPGone(text=get_held(request).mode)

    @routes.post("/invoices/{id}/twice")
    @writing
    async def twice(request: web.Request) -> web.Response:
        async with get_locks(request).mutex("invoice", request.match_info["id"]):
            raise AssertionError

    _more(routes, account)
    app = web.Application()
    add_locks(app, connecting)
    app.add_routes(routes)
    return app


def _more(routes: web.RouteTableDef, account: Account) -> None:
    @routes.put("/invoices/{id}/fenced")
    async def fenced(request: web.Request) -> web.Response:
        fence = get_fence(request)
        if fence < account.highest:
            raise StaleFence(resource="invoice", fence=fence, highest=account.highest)
        account.highest = fence
        return web.json_response({"fence": fence})

    @routes.post("/invoices/{id}/upload")
    @writing
    async def upload(request: web.Request) -> web.Response:
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
        return web.json_response({"size": size, "fence": get_held(request).fence})
