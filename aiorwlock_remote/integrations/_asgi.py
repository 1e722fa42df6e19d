"""What an ASGI application has from ``add_locks`` in each request."""

from __future__ import annotations

from typing import NoReturn

import anyio
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.client import Locks

KEY = "aiorwlock_remote"


class Site:
    """An application: its ``Locks`` while it runs."""

    opened: Locks | None = None

    @property
    def locks(self) -> Locks:
        """Those that ``add_locks`` opened.

        Raises:
            ConfigurationError: its lifespan did not run.
        """
        if self.opened is None:
            raise ConfigurationError(
                what="the application has no locks yet", hint="its lifespan did not run"
            )
        return self.opened


class Visit:
    """A request: where its locks come from, and whether the client is still there."""

    def __init__(self, site: Site, receive: Receive) -> None:
        """``receive`` is the server's."""
        self.site = site
        self._receive = receive
        self._kept: list[Message] = []

    async def receive(self) -> Message:
        """What the application gets in place of the server's."""
        return self._kept.pop(0) if self._kept else await self._receive()

    async def gone(self) -> None:
        """Returns when the client has hung up; what else comes is kept for later.

        A body that is still under way is not read on for that: it could be long. Nor
        is one that comes again and again, or fails, as other middlewares have it. Then
        nobody can tell, and this never returns.
        """
        while True:
            last = self._kept[-1] if self._kept else None
            if last is not None and last["type"] == "http.disconnect":
                return
            if len(self._kept) > 1 or (last is not None and last.get("more_body")):
                await anyio.sleep_forever()
            try:
                self._kept.append(await self._receive())
            except Exception:  # noqa: BLE001 - the handler's to meet, if it reads
                await anyio.sleep_forever()


class Doorway:
    """The middleware that makes a ``Visit`` of each request."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        """As Starlette makes it."""
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Mounted applications see it, too: they get the same scope."""
        if scope["type"] in ("http", "websocket"):
            here = Visit(self._site, receive)
            scope[KEY] = here
            if scope["type"] == "http":
                receive = here.receive
        await self._app(scope, receive, send)


def visit(scope: Scope) -> Visit:
    """That of this request.

    Raises:
        ConfigurationError: the application was given no locks.
    """
    here = scope.get(KEY)
    return here if isinstance(here, Visit) else _without()


def site_of(app: Starlette) -> Site:
    """That of this application.

    Raises:
        ConfigurationError: it was given no locks.
    """
    here = getattr(app.state, KEY, None)
    return here if isinstance(here, Site) else _without()


def _without() -> NoReturn:
    raise ConfigurationError(
        what="the application has no locks", hint="add_locks(app, connect(…))"
    )
