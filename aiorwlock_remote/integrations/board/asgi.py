"""The live page as an ASGI application, for FastAPI, Starlette and others.

::

    app.mount("/locks", board_app(connect("redis://localhost/0")))

The page has no authentication of its own: mount it behind yours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from aiorwlock_remote.integrations.board.board import Board
from aiorwlock_remote.integrations.board.site import (
    BoardRequest,
    BoardResponse,
    BoardSite,
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting

__all__ = ["board_app"]


def board_app(
    locks: Connecting | Locks | Callable[[], Locks],
    *,
    title: str = "",
    every: float = 1.0,
    allow_break: bool = False,
    hosts: Collection[str] = (),
) -> Starlette:
    """Return an ASGI application that shows the locks of a store; no I/O yet.

    The page has no authentication. The store is scanned only while somebody looks at
    the page.

    Args:
        locks: ``connect(…)``, which is opened when somebody looks; or the open
            ``Locks``, or a function that returns it, as ``lambda: get_locks(app)``.
        title: Names the store on the page.
        every: Seconds from one scan of the store to the next; 0.2 at least.
        allow_break: Whether the page can end grants.
        hosts: Names under which the page may be reached, beside localhost and
            addresses; ``["*"]``: any name, which lets other web sites read the page
            by DNS rebinding unless your authentication keeps them out.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    return asgi_app(
        BoardSite(locks, title=title, every=every, allow_break=allow_break, hosts=hosts)
    )


def asgi_app(site: BoardSite) -> Starlette:
    """Return the ASGI application of a site."""

    async def endpoint(request: Request) -> Response:
        response = await site.respond(
            BoardRequest(
                request.method,
                request.path_params["path"],
                request.headers,
                request.query_params,
                request.client.host if request.client else "",
                request.stream(),
            )
        )
        if response.since is not None:
            return _Events(site.board, response, response.since)
        return Response(response.body, response.status, response.headers)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", endpoint, methods=methods)])


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
