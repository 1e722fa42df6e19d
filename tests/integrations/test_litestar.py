"""Litestar: handlers, controllers, exception handlers, templates."""

from __future__ import annotations

import re
from typing import Annotated, Any
from uuid import UUID

import httpx
import pytest
from litestar import Controller, Litestar, Request, Response, get, patch, post
from litestar.params import Body, Parameter

from aiorwlock_remote import ConfigurationError, LockLost, connect
from aiorwlock_remote.integrations.litestar import (
    add_locks,
    fence_header,
    get_fence,
    get_held,
    get_locks,
    hold,
)

pytestmark = pytest.mark.asyncio

AnyRequest = Request[Any, Any, Any]
TEXT = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"


@get("/orders/{id:int}")
@hold("order:{id:int}", timeout=0.1)
async def show(request: AnyRequest, id: Annotated[int, Parameter()]) -> str:  # noqa: A002
    held = get_held(request)
    held.check()
    return f"{held.resource} {id} {fence_header(held)}"


class Orders(Controller):
    path = "/texts/{id:str}"

    @get()
    @hold("order:{id:int}", timeout=0.1)
    async def get(self, request: AnyRequest) -> str:
        return get_held(request).resource

    @patch("/fence")
    async def fence(self, request: AnyRequest) -> str:
        return str(get_fence(request))

    @post()
    @hold("order:{id:str}/{query.x:int}/{body.y:uuid}")
    async def post(
        self, request: AnyRequest, data: Annotated[dict[str, str], Body()]
    ) -> str:
        return f"{get_held(request).name} {data['y']}"


@get("/lost/{id:int}")
@hold("order:{id:int}")
async def lose(request: AnyRequest) -> None:
    locks = get_locks(request)
    async for seen in locks.list():
        await locks.force_release(seen, reason="test")
    await get_held(request).extend()


@get("/bug")
async def bug(request: AnyRequest) -> None:
    get_held(request)


def an_app(**more: Any) -> Litestar:  # noqa: ANN401
    handlers: list[Any] = [show, Orders, lose]
    locks = add_locks(connect("memory://"), required=False)
    return Litestar(handlers, plugins=[locks], **more)


def client(app: Litestar) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def test_handlers_and_controllers() -> None:
    app = an_app()
    async with app.lifespan(), client(app) as http:
        assert (await http.get("/orders/007")).text.startswith("order/7 7 ")
        assert (await http.get("/texts/007")).text == "order/7"
        assert (await http.get("/texts/x")).status_code == 404
        assert (await http.patch("/texts/7/fence")).status_code == 400
        fence = (await http.get("/orders/7")).text.split("'")[-2]
        headers = {"Lock-Fence": fence}
        assert (await http.patch("/texts/7/fence", headers=headers)).text == fence
        made = await http.post("/texts/eu?x=007", json={"y": TEXT})
        assert made.text == f"eu/7/{UUID(TEXT)} {TEXT}"


async def test_a_handler_of_the_users_goes_before() -> None:
    def lost(_: AnyRequest, error: LockLost) -> Response[str]:
        return Response(error.reason, status_code=599)

    app = an_app(exception_handlers={LockLost: lost})
    async with app.lifespan(), client(app) as http:
        answer = await http.get("/lost/7")
    assert (answer.status_code, answer.text) == (599, "forced")


async def test_a_template_that_does_not_fit_its_route_is_refused() -> None:
    @get("/orders/{other:int}")
    @hold("order:{id:int}")
    async def misnamed(request: AnyRequest) -> None: ...

    @get("/orders/{id:str}")
    @hold("order:{id}")
    async def misread(request: AnyRequest, id: Annotated[int, Parameter()]) -> None: ...  # noqa: A002

    for handler, why in ((misnamed, r"needs \{id\}"), (misread, "7 and 007")):
        app = Litestar([handler], plugins=[add_locks(connect("memory://"))])
        # Litestar raises it in a group.
        with pytest.raises(ExceptionGroup) as caught:
            async with app.lifespan():
                pytest.fail("started")
        (error,) = caught.value.exceptions
        assert isinstance(error, ConfigurationError)
        assert re.search(why, str(error))

    async def without(id: int) -> None: ...  # noqa: A002

    with pytest.raises(ConfigurationError, match="parameter request"):
        hold("order:{id:int}")(without)
    with pytest.raises(ConfigurationError, match="already"):
        Litestar([], plugins=[add_locks(connect("memory://")) for _ in range(2)])
    with pytest.raises(ConfigurationError, match="no locks"):
        get_locks(Litestar([]))
