"""The responses of the live page, without a web framework."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import TypedDict, cast, final

from aiorwlock_remote.core.text import plain, quoted
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.integrations.board.board import MAX_VIEWERS, Board
from aiorwlock_remote.integrations.board.guard import (
    HEADERS,
    MAX_BODY,
    Refusal,
    check_break,
    check_request,
    read_break,
)
from aiorwlock_remote.integrations.board.model import encode
from aiorwlock_remote.locks.changes import StoreScanner
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.board")

_FILES = {
    "board.css": "text/css; charset=utf-8",
    "board.js": "text/javascript; charset=utf-8",
    "format.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
EVENTS = "text/event-stream; charset=utf-8"

_FULL = (
    b"retry: 10000\nevent: refused\ndata: This board has %d viewers, and no room for"
    b" another one. The page tries again every 10 s.\n\n" % MAX_VIEWERS
)


@dataclass(frozen=True, slots=True)
class BoardRequest:
    """A request, as a framework received it.

    ``path``: below the place where the page is, ``""`` or ``"events"``; ``headers``:
    with names in lower case; ``body``: in the parts in which it comes, ending in a
    ``ConnectionError`` if the client leaves before it is whole.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    client: str
    body: AsyncIterable[bytes]


@dataclass(frozen=True, slots=True)
class BoardResponse:
    """A response; with ``since``, ``board.stream(since)`` follows.

    ``since``: the id of the last event that the viewer has, or an empty text.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    since: str | None = None


class BoardArgs(TypedDict, total=False):
    """Options of ``board_app``.

    Attributes:
        title: names the store on the page.
        every: seconds from one scan of the store to the next; 1 by default, at least
            0.2.
        allow_break: whether the page can end grants; False by default.
        hosts: names under which the page may be reached, beside localhost and
            addresses; ``["*"]``: any name, which lets other web sites read the page by
            DNS rebinding unless your authentication keeps them out.
    """

    title: str
    every: float
    allow_break: bool
    hosts: Collection[str]


ShownLocks = Connecting | Locks | Callable[[], Locks]
"""``connect(…)``, which is opened when somebody looks; or the open ``Locks``, or a
function that returns it.
"""


@final
class BoardSite:
    """Answers the requests of one live page."""

    def __init__(
        self,
        store: StoreScanner | ShownLocks,
        *,
        title: str = "",
        every: float = 1.0,
        allow_break: bool = False,
        hosts: Collection[str] = (),
        notice: str = "",
    ) -> None:
        """Prepare the page, with ``notice`` as a line of text at its head.

        The other options are those of ``BoardArgs``.
        """
        if isinstance(hosts, str):
            raise ConfigurationError(what="hosts is a list of names", hint='["name"]')
        self.board: Board = Board(_scanner(store), every=every)
        self._title = plain(title)
        self._allow_break = allow_break
        self._hosts = hosts
        self._notice = notice

    async def respond(self, request: BoardRequest) -> BoardResponse:
        """Return the response to a request."""
        refusal = check_request(request.headers, self._hosts)
        if refusal is not None:
            return _refused(refusal)
        if request.path == "break":
            return await self._break(request)
        if request.method not in ("GET", "HEAD"):
            return _refused(Refusal(405, "only GET"))
        match request.path:
            case "":
                return _response(200, self._page(), "text/html; charset=utf-8")
            case "events":
                return self._events(request)
            case name if name in _FILES:
                return _response(200, page_file(name), _FILES[name])
            case _:
                return _refused(Refusal(404, "no such page"))

    def _page(self) -> bytes:
        values = {
            "NOTICE": self._notice,
            "TITLE": self._title,
            "BREAK": "yes" if self._allow_break else "no",
        }
        text = page_file("index.html").decode()
        for name, value in values.items():
            text = text.replace(f"%{name}%", escape(value))
        return text.encode()

    def _events(self, request: BoardRequest) -> BoardResponse:
        if self.board.stopped:
            return _refused(Refusal(503, "the board is ending"))
        if self.board.viewers >= MAX_VIEWERS:
            # An event: a browser does not show a page why its stream was refused.
            return _response(200, _FULL, EVENTS)
        # Proxies are asked not to keep events back.
        more = {"content-type": EVENTS, "x-accel-buffering": "no"}
        since: str | None = None
        if request.method != "HEAD":
            # A page that was hidden comes back with a new EventSource, which can set no
            # header.
            last = request.query.get("last", "")
            since = request.headers.get("last-event-id", last)
        return BoardResponse(200, b"", {**HEADERS, **more}, since)

    async def _break(self, request: BoardRequest) -> BoardResponse:
        if request.method != "POST":
            return _refused(Refusal(405, "only POST"))
        if not self._allow_break:
            return _refused(Refusal(403, "this board only shows; see allow_break"))
        refusal = check_break(request.headers)
        if refusal is not None:
            return _refused(refusal)
        try:
            body = await _read(request.body, MAX_BODY)
        except ConnectionError:  # no browser reads this answer
            return _refused(Refusal(400, "only a part of the request came"))
        if body is None:
            return _refused(Refusal(413, "too long"))
        try:
            wanted = read_break(body)
            reason = f"{wanted.reason} (on the board, from {request.client})"
            ended = await self.board.end_grant(
                wanted.row, wanted.holder, wanted.fence, reason
            )
        except ConfigurationError as exc:
            return _refused(Refusal(400, str(exc)))
        except LockError as exc:
            log_event(log, "board_break_failed", error=str(exc))
            return _refused(Refusal(503, str(exc)))
        return _response(200, encode({"broken": ended}), _JSON)


async def _read(parts: AsyncIterable[bytes], most: int) -> bytes | None:
    """Return the joined parts; None if they are longer than ``most`` bytes."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def _scanner(given: object) -> StoreScanner:
    if isinstance(given, StoreScanner):
        return given
    if isinstance(given, Connecting | Locks):
        return StoreScanner(given)
    if callable(given):
        return StoreScanner(cast("Callable[[], Locks]", given))
    raise ConfigurationError(
        what=f"no locks can be shown of {quoted(given)}",
        hint="pass connect(…), or a function that returns the open Locks",
    )


@cache
def page_file(name: str) -> bytes:
    """Return a file of the page; the names are those of this module only."""
    return (
        resources.files("aiorwlock_remote.integrations.board") / "page" / name
    ).read_bytes()


def _response(status: int, body: bytes, content_type: str) -> BoardResponse:
    return BoardResponse(status, body, {**HEADERS, "content-type": content_type})


def _refused(refusal: Refusal) -> BoardResponse:
    return _response(refusal.status, plain(refusal.why).encode(), _TEXT)
