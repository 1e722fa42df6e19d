"""The live page as an application of aiohttp, which cannot mount ASGI.

::

    app.add_subapp("/locks/", board_app(connect("redis://localhost/0")))

The page has no authentication of its own: put it behind yours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from aiohttp import web

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
) -> web.Application:
    """Return an application for ``app.add_subapp("/locks/", …)``; no I/O yet.

    The page has no authentication. The store is scanned only while somebody looks at
    the page, at ``/locks/``: with the slash.

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
    site = BoardSite(
        locks, title=title, every=every, allow_break=allow_break, hosts=hosts
    )

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await site.respond(
            BoardRequest(
                request.method,
                request.match_info["path"],
                {name.lower(): value for name, value in request.headers.items()},
                request.query,
                request.remote or "",
                request.content.iter_any(),
            )
        )
        if response.since is not None:
            return await _stream(site, request, response, response.since)
        return web.Response(
            body=response.body, status=response.status, headers=response.headers
        )

    async def stop(app: web.Application) -> None:
        del app
        site.board.stop()

    async def close(app: web.Application) -> None:
        del app
        await site.board.aclose()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    app.on_shutdown.append(stop)
    app.on_cleanup.append(close)
    return app


async def _stream(
    site: BoardSite, request: web.Request, response: BoardResponse, since: str
) -> web.StreamResponse:
    stream = web.StreamResponse(status=response.status, headers=response.headers)
    taken = False
    async with site.board.stream(since) as messages:
        # A viewer that left is found when the next message is sent to it.
        with suppress(ConnectionError):
            await stream.prepare(request)
            async for message in messages:
                await stream.write(message)
        taken = True
    # To a viewer that does not read, the end of the response could not be sent either.
    if not taken and request.transport is not None:
        request.transport.abort()
    return stream
