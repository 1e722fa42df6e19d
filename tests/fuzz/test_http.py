"""Requests as any client may send them, to the web integrations and the board."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes
from wsgiref.util import setup_testing_defaults

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Message

from aiorwlock_remote import Held, Mutex, connect
from aiorwlock_remote.integrations.board import guard
from aiorwlock_remote.integrations.board.asgi import asgi_app
from aiorwlock_remote.integrations.board.site import BoardSite
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.fuzz.hostile import HOSTILE
from tests.integrations.asgi_connection import scope_of
from tests.integrations.web_apps import APPS
from tests.integrations.web_apps import running as running_app

EXAMPLES = 60
BUSY = "order", "7"
REDIRECTED = {307, 308}
"""Of the routers of Starlette and Flask: a path has a slash too many."""
DOCUMENTED = REDIRECTED | {
    *(200, 304, 400, 403, 404, 405, 411, 412, 413, 415, 421, 422, 423)
}
"""None of them says that the server has failed, nor that the store has."""

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Sent:
    """A request, by its bytes; ``path`` is percent-encoded."""

    path: bytes
    query: bytes = b""
    headers: Headers = ()
    body: bytes = b""
    method: str = "POST"


Ask = Callable[[Sent], Awaitable[int]]
"""Sends a request; returns the status, raises what reaches the server."""


async def ask_asgi(app: Any, sent: Sent) -> int:  # noqa: ANN401 - each has own types
    answer: list[Message] = []
    parts: list[Message] = [
        {"type": "http.request", "body": sent.body[:3], "more_body": True},
        {"type": "http.request", "body": sent.body[3:], "more_body": False},
    ]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()  # until the client leaves
        return parts.pop(0)

    async def send(message: Message) -> None:
        answer.append(message)

    path = unquote(sent.path.decode("latin-1"))
    scope = scope_of(path, *sent.headers, method=sent.method, raw_path=sent.path)
    scope["query_string"] = sent.query
    await app(scope, receive, send)
    status = next(m["status"] for m in answer if m["type"] == "http.response.start")
    assert isinstance(status, int)
    return status


async def ask_wsgi(app: Any, sent: Sent) -> int:  # noqa: ANN401
    """In a thread, as synchronous locks refuse one in which an event loop runs."""
    return await asyncio.to_thread(_call_wsgi, app, sent)


def _call_wsgi(app: Any, sent: Sent) -> int:  # noqa: ANN401
    answer: list[str] = []

    def start_response(status: str, *_: object) -> None:
        answer.append(status)

    chunks: Iterable[bytes] = app(_environ(sent), start_response)
    for _ in chunks:
        pass
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
    return int(answer[-1].split(" ")[0])


def _environ(sent: Sent) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": sent.method,
        "PATH_INFO": unquote_to_bytes(sent.path).decode("latin-1"),
        "QUERY_STRING": sent.query.decode("latin-1"),
        "wsgi.input": BytesIO(sent.body),
    }
    for name, value in framed(sent).headers:
        key = name.decode().upper().replace("-", "_")
        if not key.startswith("CONTENT_"):
            key = f"HTTP_{key}"
        before = f"{environ[key]}," if key in environ else ""
        environ[key] = before + value.decode("latin-1")
    setup_testing_defaults(environ)
    return environ


async def ask_aiohttp(port: int, sent: Sent) -> int:
    """By its own server, as no other one can call its handlers."""
    target = sent.path + (b"?" + sent.query if sent.query else b"")
    # aiohttp's parser answers all other bytes, and a request without a host, by 400.
    line = quote_from_bytes(target, safe=string.punctuation).encode()
    headers = [(b"connection", b"close"), *framed(sent).headers]
    if b"host" not in dict(headers):
        headers = [(b"host", b"localhost"), *headers]
    lines = b"".join(
        name + b": " + bytes(b for b in value if b >= ord(" ") and b != 0x7F) + b"\r\n"
        for name, value in headers
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"%b %b HTTP/1.1\r\n%b\r\n" % (sent.method.encode(), line, lines) + sent.body
    )
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


def framed(sent: Sent) -> Sent:
    """Return the request with the length of its body, as servers see to.

    Left out: lengths that are none. aiohttp's server answers them by 400, or waits for
    the rest of the body; ``request.body`` of Django raises ``ValueError``, and no
    server of Django passes them on.
    """
    others = (each for each in sent.headers if each[0] != b"content-length")
    length = b"content-length", str(len(sent.body)).encode()
    return replace(sent, headers=(*others, length))


USUAL: Headers = (
    *((b"host", b"localhost:8080"), (b"origin", b"http://localhost:8080")),
    (b"content-type", b"application/json"),
)
"""Headers without which the board looks at nothing else."""


@asynccontextmanager
async def board_site(memory: FaultyMemory) -> AsyncIterator[Ask]:
    site = BoardSite(connect(memory), every=60.0, allow_break=True)
    of_page = guard.PAGE_HEADER.encode(), b"1"
    app = asgi_app(site)

    async def ask(sent: Sent) -> int:
        usual = dict(sent.headers).items() >= dict(USUAL).items()
        headers = (*sent.headers, of_page) if usual else sent.headers
        return await ask_asgi(app, replace(sent, headers=headers))

    yield ask
    await site.board.aclose()


@asynccontextmanager
async def web_site(kind: str, memory: FaultyMemory) -> AsyncIterator[Ask]:
    async with running_app(kind, memory, timeout=0) as app:
        if app.speaks == "http":
            yield partial(ask_aiohttp, app.port)
        elif app.speaks == "wsgi":
            yield partial(ask_wsgi, app.app)
        elif kind == "django":
            yield lambda sent: ask_asgi(app.app, framed(sent))
        else:
            yield partial(ask_asgi, app.app)


each_site = pytest.mark.parametrize("site", APPS, indirect=True)


class Site:
    """An application that runs, and a lock of its store that another process holds."""

    def __init__(
        self, runner: asyncio.Runner, ask: Ask, neighbour: Held, lock: Mutex
    ) -> None:
        self._runner = runner
        self._ask = ask
        self._neighbour = neighbour
        self._lock = lock

    def ask(self, sent: Sent) -> int:
        """Send a request; return the status, raise what reaches the server.

        Fail if the neighbour's lock is not held afterwards.
        """
        return self._runner.run(self._asked(sent))

    async def _asked(self, sent: Sent) -> int:
        async with asyncio.timeout(30):
            status = await self._ask(sent)
        self._neighbour.check()
        (holder,) = (await self._lock.info()).holders
        assert holder.fence == self._neighbour.fence
        return status


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[tuple[Ask, Held, Mutex]]:
    memory = FaultyMemory()
    site = board_site(memory) if kind == "board" else web_site(kind, memory)
    async with connect(memory) as others, site as ask:
        lock = others.mutex(*BUSY)
        # Not `async with`: the fixture enters and exits in two tasks.
        held = await lock.acquire(lease=600)
        yield ask, held, lock
        await held.release()


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with asyncio.Runner() as runner:
        context = running(request.param)
        yield Site(runner, *runner.run(context.__aenter__()))
        runner.run(context.__aexit__(None, None, None))


texts = st.sampled_from(tuple(HOSTILE.values())) | st.text(max_size=20)
quoted = texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
raw = quoted | st.binary(max_size=20)
exact = st.sampled_from(
    [b"/path/1", b"/number/7", b"/query", b"/body", b"/fence", b"/", b"/break"]
)
paths = (
    exact
    | st.sampled_from([b"/icon.svg", b"/board.js"])
    | st.builds(
        lambda start, rest: start + rest.replace(b"?", b"%3F"),
        st.sampled_from([b"/path/", b"/number/", b"/"]),
        raw,
    )
)
names = st.sampled_from(
    [
        *(b"lock-fence", b"content-type", b"content-length", b"host", b"origin"),
        *(b"x-rwlock-board", b"accept-encoding", b"cookie", b"x"),
    ]
)
values = st.sampled_from(
    [
        *(b"application/json", b"test", b"http://test", b"1795000000000000", b"-1"),
        *(b"9" * 17, b"1 ", b"\xb2", b"0x1", b"", b"1,2"),
        # Not "hex" and others that decode no text: Django's request raises LookupError
        # for them when it is made.
        *(b"application/json; charset=utf-7", b"application/json; charset=none"),
    ]
) | st.binary(max_size=12)
headers = st.lists(st.tuples(names, values), max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner),
    max_leaves=5,
)
bodies = (
    st.binary(max_size=30)
    | st.builds(
        lambda value: json.dumps({"id": value}).encode("utf-8", "surrogatepass"),
        json_values,
    )
    | st.sampled_from([b"[" * 50_000, b'{"id": "a", "id": "b"}', b'{"id": 1e999}'])
    | st.builds(
        lambda row, holder: json.dumps(
            {"row": row, "holder": holder, "fence": "1", "reason": "x"}
        ).encode("utf-8", "surrogatepass"),
        json_values,
        json_values,
    )
)


@pytest.mark.parametrize("site", [*APPS, "board"], indirect=True)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(
    path=paths,
    query=st.builds(
        lambda key, value: key + value, st.just(b"id=") | raw, raw | st.just(b"1")
    ),
    given_headers=headers,
    body=bodies,
    method=st.sampled_from(["POST", "GET", "POST", "GET", "HEAD", "X"]),
    usual=st.booleans(),
)
def test_any_request_is_answered(
    site: Site,
    path: bytes,
    query: bytes,
    given_headers: list[tuple[bytes, bytes]],
    body: bytes,
    method: str,
    usual: bool,
) -> None:
    """By a documented status, without an exception, and the neighbour's lock stays."""
    if unquote_to_bytes(path).strip(b"/") == b"events":
        return  # a stream that lasts as long as its client
    sent = {**dict(given_headers), **dict(USUAL)}.items() if usual else given_headers
    request = Sent(path, query.replace(b"#", b""), tuple(sent), body, method)
    assert site.ask(request) in DOCUMENTED


@each_site
def test_a_query_that_is_no_text(site: Site) -> None:
    assert site.ask(Sent(b"/path/1", b"\x801")) in {200, 400}


@each_site
@pytest.mark.parametrize(
    "path", [b"/path/7", b"/path/%37", b"/number/7", b"/number/%37"]
)
def test_a_lock_that_is_held_is_held_by_each_spelling(site: Site, path: bytes) -> None:
    assert site.ask(Sent(path, method="GET")) == 423


@each_site
@pytest.mark.parametrize(
    ("query", "body"), [(b"id=%37", b""), (b"%69d=7", b""), (b"", b'{"id": 7}')]
)
def test_a_lock_is_busy_by_query_and_by_body(
    site: Site, query: bytes, body: bytes
) -> None:
    path = b"/body" if body else b"/query"
    assert site.ask(Sent(path, query, USUAL, body)) == 423
