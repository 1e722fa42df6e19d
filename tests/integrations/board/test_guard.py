"""Which requests the live page answers."""

from __future__ import annotations

import gc
import json

import pytest
import trio
from starlette.types import Message, Scope

from aiorwlock_remote import connect
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.integrations.board.asgi import board_app
from aiorwlock_remote.integrations.board.guard import (
    HEADERS,
    BreakRequest,
    Refusal,
    check_break,
    check_request,
    read_break,
)


@pytest.mark.parametrize(
    ("host", "hosts", "known"),
    [
        ("127.0.0.1:8765", (), True),
        ("localhost:8765", (), True),
        ("LocalHost", (), True),
        ("board.localhost:1", (), True),
        ("[::1]:8765", (), True),
        ("10.1.2.3:8765", (), True),
        ("ops.example", (), False),
        ("ops.example:443", ("ops.example",), True),
        ("OPS.example.", ("ops.Example",), True),
        ("ops.example.evil.test", ("ops.example",), False),
        ("localhost.evil.test", (), False),
        ("127.0.0.1.evil.test", (), False),
        ("127.0.0.1@evil.test", (), False),
        ("evil.test", ("*",), True),
        ("", ("*",), False),
        ("", (), False),
        ("[::1", (), False),
    ],
)
def test_hosts(host: str, hosts: tuple[str, ...], known: bool) -> None:
    refusal = check_request({"host": host}, hosts)
    assert (refusal is None) is known
    assert known or refusal == Refusal(421, refusal.why if refusal else "")


@pytest.mark.parametrize(
    ("site", "mode", "answered"),
    [
        ("same-origin", "cors", True),
        ("none", "navigate", True),
        ("cross-site", "navigate", True),  # a link
        ("cross-site", "no-cors", False),
        ("same-site", "cors", False),
    ],
)
def test_other_sites_read_nothing(site: str, mode: str, answered: bool) -> None:
    headers = {"host": "localhost", "sec-fetch-site": site, "sec-fetch-mode": mode}
    assert (check_request(headers, ()) is None) is answered


PAGE = {
    "host": "localhost:8765",
    "origin": "http://localhost:8765",
    "x-rwlock-board": "1",
    "content-type": "application/json",
}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, None),
        ({"origin": "https://localhost:8765"}, None),  # a proxy with TLS
        ({"content-type": "application/json; charset=utf-8"}, None),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "localhost:8765"}, 403),
        ({"origin": ""}, 403),
        ({"x-rwlock-board": ""}, 403),
        ({"content-type": "text/plain"}, 415),
    ],
)
def test_only_the_page_ends_grants(headers: dict[str, str], status: int | None) -> None:
    refusal = check_break(PAGE | headers)
    assert (refusal and refusal.status) == status


def test_a_valid_break_request() -> None:
    body = {"row": "r3", "holder": "a" * 12, "fence": None, "reason": " db-2 is down "}
    wanted = BreakRequest("r3", "a" * 12, None, "db-2 is down")
    assert read_break(json.dumps(body).encode()) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"row": 3},
        {"row": True},
        {"row": None},
        {"holder": 7},
        {"fence": 7},
        {"reason": ""},
        {"reason": " "},
        {"reason": "x" * 1001},
        {"reason": None},
    ],
)
def test_an_invalid_break_request(change: dict[str, object]) -> None:
    body = {"row": "r3", "holder": "a" * 12, "fence": "7", "reason": "down"} | change
    with pytest.raises(ConfigurationError):
        read_break(json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b"1"])
def test_a_body_that_is_no_break_request(body: bytes) -> None:
    with pytest.raises(ConfigurationError):
        read_break(body)


def test_the_policy_lets_nothing_in() -> None:
    policy = dict(
        part.strip().split(" ", 1)
        for part in HEADERS["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert HEADERS["x-frame-options"] == "DENY"


def test_the_parts_of_a_request_that_is_too_long_are_closed() -> None:
    """A trio program would be warned of a generator that stays open."""
    headers = {
        "host": "localhost",
        "origin": "http://localhost",
        "x-rwlock-board": "1",
        "content-type": "application/json",
    }
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/break",
        "query_string": b"",
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 20_000, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        app = board_app(connect("memory://"), allow_break=True)
        await app(scope, receive, send)
        gc.collect()

    trio.run(ask)
    assert sent[0]["status"] == 413
