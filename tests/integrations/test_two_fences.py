"""A request with two ``Lock-Fence`` headers has none, in every framework.

A proxy may add one to that of the client: which of them counted would be chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from flask import Flask
from litestar.connection import Request as LitestarRequest
from multidict import CIMultiDict
from starlette.requests import Request
from werkzeug.test import EnvironBuilder

from aiorwlock_remote import BadFence
from aiorwlock_remote.integrations import (
    aiohttp,
    fastapi,
    flask,
    litestar,
    starlette,
)
from aiorwlock_remote.integrations.django import views

HEADER = "Lock-Fence"
Fences = Sequence[str]


def scope(fences: Fences) -> Any:  # noqa: ANN401 - each framework has its own type
    return {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(HEADER.lower().encode(), fence.encode()) for fence in fences],
    }


def environ(fences: Fences) -> dict[str, Any]:
    """As a WSGI server has it: it joins headers of one name."""
    headers = [(HEADER, fence) for fence in fences]
    return EnvironBuilder(method="POST", headers=headers).get_environ()


def by_flask(fences: Fences) -> int:
    with Flask(__name__).request_context(environ(fences)):
        return flask.get_fence()


def by_aiohttp(fences: Fences) -> int:
    headers = CIMultiDict((HEADER, fence) for fence in fences)

    async def ask() -> int:
        return aiohttp.get_fence(make_mocked_request("POST", "/", headers=headers))

    return asyncio.run(ask())


BY: dict[str, Callable[[Fences], int]] = {
    "aiohttp": by_aiohttp,
    "django-asgi": lambda fences: views.get_fence(
        ASGIRequest(scope(fences), BytesIO())
    ),
    "django-wsgi": lambda fences: views.get_fence(WSGIRequest(environ(fences))),
    "fastapi": lambda fences: fastapi.get_fence(Request(scope(fences))),
    "flask": by_flask,
    "litestar": lambda fences: litestar.get_fence(LitestarRequest(scope(fences))),
    "starlette": lambda fences: starlette.get_fence(Request(scope(fences))),
}


@pytest.mark.parametrize("framework", BY)
def test_one_is_a_fence(framework: str) -> None:
    assert BY[framework](["42"]) == 42


@pytest.mark.parametrize("framework", BY)
@pytest.mark.parametrize("fences", [["42", "43"], ["42", "42"], ["42", ""], []])
def test_two_are_none(framework: str, fences: Fences) -> None:
    with pytest.raises(BadFence):
        BY[framework](fences)
