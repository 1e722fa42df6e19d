"""The live page as an application of aiohttp, which cannot mount ASGI.

::

    app.add_subapp("/locks/", board_app(connect("redis://localhost/0")))

The page has no authentication of its own: put it behind yours.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

from aiohttp import web

from aiorwlock_remote.integrations.board.site import (
    BoardArgs,
    BoardRequest,
    BoardResponse,
    BoardSite,
    ShownLocks,
)

__all__ = ["board_app"]


def board_app(locks: ShownLocks, **options: Unpack[BoardArgs]) -> web.Application:
    """Return an application for ``app.add_subapp("/locks/", …)``; no I/O yet.

    The page has no authentication. The store is scanned only while a browser looks at
    the page, at ``/locks/``: with the slash.

    Args:
        locks: ``connect(…)``, which is opened when a browser looks; or the open
            ``Locks``, or a function that returns it, as ``lambda: get_locks(app)``.
        **options: Those of the page; see ``BoardArgs``.

    Raises:
        ConfigurationError: An argument is not valid.
    """
    site = BoardSite(locks, **options)

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
