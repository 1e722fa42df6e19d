"""The live page as an ASGI application, for FastAPI, Starlette and others.

::

    app.mount("/locks", board_app(connect("redis://localhost/0")))

The page has no authentication of its own: mount it behind yours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Unpack

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from aiorwlock_remote.integrations.board.board import Board
from aiorwlock_remote.integrations.board.site import (
    BoardArgs,
    BoardRequest,
    BoardResponse,
    BoardSite,
    ShownLocks,
)

__all__ = ["board_app"]


def board_app(locks: ShownLocks, **options: Unpack[BoardArgs]) -> Starlette:
    """Return an ASGI application that shows the locks of a store; no I/O yet.

    The page has no authentication. The store is scanned only while a browser looks at
    the page.

    Args:
        locks: ``connect(…)``, which is opened when a browser looks; or the open
            ``Locks``, or a function that returns it, as ``lambda: get_locks(app)``.
        **options: Those of the page; see ``BoardArgs``.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    return asgi_app(BoardSite(locks, **options))


def asgi_app(site: BoardSite) -> Starlette:
    """Return the ASGI application of a site."""
    return Starlette(routes=[Route("/{path:path}", _Endpoint(site))])


class _Endpoint:
    # No function: Starlette itself would answer methods that are not listed for it, and
    # without the headers of the page (test_the_page_in_an_application).
    def __init__(self, site: BoardSite) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with aclosing(_body(request)) as body:
            response = await self._site.respond(
                BoardRequest(
                    request.method,
                    request.path_params["path"],
                    request.headers,
                    request.query_params,
                    request.client.host if request.client else "",
                    body,
                )
            )
        if response.since is not None:
            answer: Response = _Events(self._site.board, response, response.since)
        else:
            answer = Response(response.body, response.status, response.headers)
        await answer(scope, receive, send)


async def _body(request: Request) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(request.stream()) as parts:
            async for part in parts:
                yield part
    except ClientDisconnect as exc:
        raise ConnectionResetError from exc


class _Events(Response):
    # The viewer is counted here and not in the generator, whose `finally` would run at
    # its garbage collection only if the client leaves while it is sent something
    # (test_a_viewer_that_leaves_is_counted_out).
    def __init__(self, board: Board, response: BoardResponse, since: str) -> None:
        super().__init__()
        self._board = board
        self._response = response
        self._since = since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._board.stream(self._since) as messages:
            stream = StreamingResponse(
                messages, self._response.status, self._response.headers
            )
            await stream(scope, receive, send)
