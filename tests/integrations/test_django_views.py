"""Django: async and sync views, by its test clients and by a lifespan."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.views import View

from aiorwlock_remote import BackendUnavailable, ConfigurationError, LockBusy
from aiorwlock_remote.integrations.django import views
from aiorwlock_remote.integrations.django.views import (
    add_locks,
    fence_header,
    get_held,
    hold,
)
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.asgi_connection import Line, part, scope_of
from tests.integrations.guests import until

NAME = "order:{id:int}"
briefly = hold(NAME, timeout=0.1, reason="payment")


@briefly
def pay(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    held = get_held(request)
    held.check()
    return HttpResponse(f"{held.resource} {id}", headers=fence_header(held))


@briefly
async def pay_async(request: HttpRequest, id: int) -> HttpResponse:  # noqa: A002
    held = get_held(request)
    held.check()
    return HttpResponse(f"{held.resource} {id}", headers=fence_header(held))


class Orders(View):
    """A view with methods."""

    @briefly
    async def get(self, request: HttpRequest, id: str) -> HttpResponse:  # noqa: A002
        return HttpResponse(f"{get_held(request).resource} {id}")


@hold("order:{query.id:int}")
def query(request: HttpRequest) -> HttpResponse:
    return HttpResponse(get_held(request).resource)


def busy(request: HttpRequest) -> HttpResponse:
    raise LockBusy(resource=request.path, holders=("secret",))


def bug(request: HttpRequest) -> HttpResponse:
    raise ConfigurationError(what=request.path)


URLS = ModuleType("tests.integrations.django_urls_of_views")
URLS.urlpatterns = [  # type: ignore[attr-defined]
    path("sync/<int:id>", pay),
    path("async/<int:id>", pay_async),
    path("texts/<id>", Orders.as_view()),
    path("query", query),
    path("busy", busy),
    path("bug", bug),
    path("nameless", pay),
]
sys.modules[URLS.__name__] = URLS

BOTH = ["/sync/7", "/async/7"]


@pytest.fixture
def store() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture(autouse=True)
def project(store: FaultyMemory) -> Iterator[None]:
    with override_settings(
        AIORWLOCK_REMOTE={"store": store},
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=URLS.__name__,
        MIDDLEWARE=[f"{views.__name__}.LockErrorMiddleware"],
    ):
        yield


def test_views_by_the_synchronous_client() -> None:
    http = Client()
    for url in BOTH:
        assert http.get(url).content == b"order/7 7"
    assert http.get("/texts/007").content == b"order/7 007"
    assert http.get("/texts/x").status_code == 404


def test_a_query_of_too_many_fields() -> None:
    """Django refuses to read it; a hold of the path does not need it."""
    http, many = Client(), "&".join(["x=1"] * 1001)
    for url in BOTH:
        assert http.get(f"{url}?{many}").content == b"order/7 7"
    answer = Client(raise_request_exception=False).get(f"/query?{many}")
    assert answer.status_code == 400


@pytest.mark.asyncio
@pytest.mark.parametrize("url", BOTH)
async def test_views_by_the_asynchronous_client(url: str) -> None:
    answer = await AsyncClient().get(url)
    assert answer.content == b"order/7 7"


def test_errors_of_other_locks_and_bugs() -> None:
    http = Client(raise_request_exception=False)
    answer = http.get("/busy")
    assert (answer.status_code, answer.headers["Retry-After"]) == (423, "1")
    assert b"secret" not in answer.content
    assert http.get("/bug").status_code == 500
    assert http.get("/nameless").status_code == 500


def test_without_settings() -> None:
    with (
        override_settings(AIORWLOCK_REMOTE=None),
        pytest.raises(ConfigurationError, match="settings have no AIORWLOCK_REMOTE"),
    ):
        add_locks(get_asgi_application())  # type: ignore[arg-type]
    request = HttpRequest()
    with pytest.raises(ConfigurationError, match="no hold"):
        get_held(request)


class Server:
    """The server's end of a lifespan."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._asked = False

    async def receive(self) -> Any:  # noqa: ANN401
        if self._asked:
            await self.stop.wait()
        self._asked = True
        return {"type": "lifespan"}

    async def runs(self, app: Any) -> asyncio.Task[None]:  # noqa: ANN401
        scope = {"type": "lifespan"}
        return asyncio.create_task(app(scope, self.receive, self.sent.put))


def a_request(url: str) -> tuple[Line, dict[str, Any]]:
    line = Line(part(b"", more=False))
    return line, {**scope_of(url), "method": "GET", "server": ("t", 80)}


@pytest.mark.asyncio
async def test_one_connection_for_all_async_views(store: FaultyMemory) -> None:
    app: Any = add_locks(get_asgi_application(), required=False)  # type: ignore[arg-type]
    server = Server()
    with store.down():
        running = await server.runs(app)
        assert (await server.sent.get())["type"] == "lifespan.startup.complete"
        line, scope = a_request("/async/7")
        await line.calls(app, scope)
        assert line.status == 503

    async def connected() -> bool:
        line, scope = a_request("/async/7")
        await line.calls(app, scope)
        return line.status == 200

    await until(connected)
    # One for the lifespan, and none for the requests.
    assert len(store._stores) == 1
    server.stop.set()
    await running
    assert (await server.sent.get())["type"] == "lifespan.shutdown.complete"


@pytest.mark.asyncio
async def test_a_failed_start_is_reported(store: FaultyMemory) -> None:
    server = Server()
    with store.down():
        running = await server.runs(add_locks(get_asgi_application()))  # type: ignore[arg-type]
        assert (await server.sent.get())["type"] == "lifespan.startup.failed"
        with pytest.raises(BackendUnavailable):
            await running


@pytest.mark.asyncio
async def test_a_sync_view_beside_a_loop() -> None:
    """As Django runs them under ASGI."""
    request = HttpRequest()
    answer: HttpResponseBase = await sync_to_async(pay)(request, id=7)
    assert isinstance(answer, HttpResponse)
    assert answer.content == b"order/7 7"
