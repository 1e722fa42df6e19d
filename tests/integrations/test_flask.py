"""Flask: views, a store that is down, forks of what was loaded before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from flask import Flask, Response

from aiorwlock_remote import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.integrations._sync_app import SyncAppLocks
from aiorwlock_remote.integrations.flask import (
    add_locks,
    fence_header,
    get_fence,
    get_held,
    get_locks,
    health,
    hold,
)
from aiorwlock_remote.sync import Locks, connect
from aiorwlock_remote.testing.memory import FaultyMemory


def an_app(open_locks: Callable[[], Locks]) -> Flask:
    app = Flask(__name__)
    add_locks(app, open_locks)
    app.get("/ready")(health)

    @app.post("/orders/<int:id>")
    @hold("order:{id:int}", timeout=0.1, reason="payment")
    def pay(id: int) -> Response:  # noqa: A002
        held = get_held()
        held.check()
        return Response(f"{held.resource} {id}", headers=fence_header(held))

    @app.post("/lost/<id>")
    @hold("order:{id:int}")
    def lose(id: str) -> str:  # noqa: A002
        for seen in get_locks().list():
            get_locks().force_release(seen, reason=f"test of {id}")
        get_held().extend()
        raise AssertionError

    @app.get("/query")
    @hold("order:{query.id:int}")
    def query() -> str:
        return get_held().resource

    @app.post("/body")
    @hold("order:{body.id:int}")
    def body() -> str:
        return get_held().resource

    @app.get("/unheld")
    def unheld() -> str:
        with pytest.raises(ConfigurationError, match="no hold"):
            get_held()
        return str(get_fence())

    return app


@pytest.fixture
def store() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture
def app(store: FaultyMemory) -> Iterator[Flask]:
    app = an_app(lambda: connect(store))
    yield app
    app.extensions["aiorwlock_remote"].close()


def test_views(app: Flask) -> None:
    http = app.test_client()
    paid = http.post("/orders/007")
    assert paid.text == "order/7 7"
    assert http.get("/query?id=7").text == "order/7"
    assert http.post("/body", json={"id": 7}).text == "order/7"
    assert http.get("/query?id=7&id=8").status_code == 422
    assert http.post("/lost/x").status_code == 404
    assert http.get("/unheld").status_code == 400
    fence = paid.headers["Lock-Fence"]
    assert http.get("/unheld", headers={"Lock-Fence": fence}).text == fence


@pytest.mark.parametrize("query", ["id=\x80", "\xff"])
def test_a_query_that_is_not_utf8(app: Flask, query: str) -> None:
    """Werkzeug cannot read any part of it; a hold of the path does not need one."""
    http = app.test_client()
    said = {"QUERY_STRING": query}
    assert http.post("/orders/7", environ_overrides=said).text == "order/7 7"
    assert http.get("/query", environ_overrides=said).status_code == 422


def test_another_has_it(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    http = app.test_client()
    with get_locks(app).mutex("order", 7).acquire(reason="refund"):
        answers: list[tuple[int, str | None, str | None]] = []

        def call() -> None:
            answer = http.post("/orders/7")
            retry = answer.headers.get("Retry-After")
            answers.append((answer.status_code, retry, answer.mimetype))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert answers == [(423, "1", "application/problem+json")]
    said = [r.getMessage() for r in caplog.records if r.name.endswith(".http")]
    assert len(said) == 1
    assert "refund" in said[0]


def test_a_lock_that_is_lost_is_503(app: Flask) -> None:
    answer = app.test_client().post("/lost/7")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_the_store_is_down_and_back(
    app: Flask, store: FaultyMemory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    http = app.test_client()
    with store.down():
        for _ in range(3):
            assert http.post("/orders/7").status_code == 503
            assert http.get("/ready").status_code == 503
    deadline = threading.Event()
    while http.get("/ready").status_code != 200:
        deadline.wait(0.01)
    assert http.post("/orders/7").status_code == 200
    events = [r.getMessage().partition(" ")[0] for r in caplog.records]
    assert events == ["store_down_at_start", "store_connected"]
    with store.down():
        assert http.post("/orders/7").status_code == 503
    assert http.post("/orders/7").status_code == 200


def test_one_thread_at_a_time_tries_to_connect() -> None:
    attempts: list[int] = []

    def slow() -> Locks:
        attempts.append(1)
        waits.wait(0.2)
        raise BackendUnavailable(what="down")

    waits = threading.Event()
    app_locks = SyncAppLocks(slow)
    # So that the pause is longer than this test.
    app_locks._failures = 10
    failed: list[str] = []

    def ask() -> None:
        with pytest.raises(BackendUnavailable) as caught:
            _ = app_locks.locks
        failed.append(str(caught.value))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attempts) == 1
    assert len(failed) == 20


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
