"""Flask: queries that it cannot read, threads that connect, unsupported uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask, Response

from aiorwlock_remote import ConfigurationError, Unsupported
from aiorwlock_remote.integrations.flask import (
    add_locks,
    fence_header,
    get_held,
    get_locks,
    hold,
)
from aiorwlock_remote.sync import Locks, connect
from aiorwlock_remote.testing.memory import FaultyMemory


def an_app(open_locks: Callable[[], Locks]) -> Flask:
    app = Flask(__name__)
    add_locks(app, open_locks)

    @app.post("/orders/<int:id>")
    @hold("order:{id:int}", timeout=0.1, reason="payment")
    def pay(id: int) -> Response:  # noqa: A002
        held = get_held()
        held.check()
        return Response(f"{held.resource} {id}", headers=fence_header(held))

    @app.get("/query")
    @hold("order:{query.id:int}")
    def query() -> str:
        return get_held().resource

    return app


@pytest.fixture
def store() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture
def app(store: FaultyMemory) -> Iterator[Flask]:
    app = an_app(lambda: connect(store))
    yield app
    app.extensions["aiorwlock_remote"].close()


@pytest.mark.parametrize("query", ["id=\x80", "\xff"])
def test_a_query_that_is_not_utf8(app: Flask, query: str) -> None:
    """Werkzeug cannot read any part of it; a hold of the path does not need one."""
    http = app.test_client()
    said = {"QUERY_STRING": query}
    assert http.post("/orders/7", environ_overrides=said).text == "order/7 7"
    assert http.get("/query", environ_overrides=said).status_code == 422


def test_an_error_that_no_retry_mends_is_501() -> None:
    def unfit() -> Locks:
        raise Unsupported(what="no such table")

    app = an_app(unfit)
    assert app.test_client().post("/orders/7").status_code == 501


def test_unsupported_uses_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no locks can be opened"):
        add_locks(Flask(__name__), "sqlite:///x.db")  # type: ignore[arg-type]
    app = an_app(lambda: connect("memory://"))
    with pytest.raises(ConfigurationError, match="already"):
        add_locks(app, lambda: connect("memory://"))
    with pytest.raises(ConfigurationError, match="no locks"):
        get_locks(Flask(__name__))

    async def view() -> str:
        return ""

    with pytest.raises(ConfigurationError, match="coroutine"):
        hold("order:{id}")(view)
