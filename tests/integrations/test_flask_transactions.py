"""Flask: the lock is released after the functions in which applications commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from flask import (
    Flask,
    Response,
    abort,
    g,
    stream_with_context,
)
from flask.globals import request_ctx
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from aiorwlock_remote import LockLost
from aiorwlock_remote.integrations.flask import add_locks, get_held, get_locks, hold
from aiorwlock_remote.sync import connect
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.race import LOCK, Race, counters, waits_in

locked = hold("counter:{id:int}")


def read(session: Session) -> int:
    row = session.execute(text("SELECT total FROM counters WHERE id = 7")).one()
    return int(row[0])


def write(session: Session, total: int) -> None:
    session.execute(text("UPDATE counters SET total = :total"), {"total": total})


def an_app() -> Flask:
    app = Flask(__name__)

    @app.errorhandler(ValueError)
    def answer(_error: ValueError) -> tuple[str, int]:
        return "lost", 409

    return app


def with_locks(app: Flask) -> Flask:
    store = FaultyMemory()
    add_locks(app, lambda: connect(store))
    return app


@pytest.fixture
def app() -> Iterator[Flask]:
    app = with_locks(an_app())
    yield app
    app.extensions["aiorwlock_remote"].close()


def is_held(app: Flask) -> bool:
    return get_locks(app).mutex(*LOCK).locked()


@pytest.mark.parametrize("commits_in", ["teardown_request", "teardown_appcontext"])
@pytest.mark.parametrize("first", ["the locks", "the database"])
def test_no_change_is_lost(database: str, first: str, commits_in: str) -> None:
    """Whatever was added to the application first."""
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    session = scoped_session(sessionmaker(engine))
    app = an_app()
    if first == "the locks":
        with_locks(app)

    @getattr(app, commits_in)  # type: ignore[untyped-decorator]
    def end(error: BaseException | None) -> None:
        if error is None:
            session.commit()
        session.remove()

    if first == "the database":
        with_locks(app)
    race = Race(database, waits_in(lambda: get_locks(app)))
    event.listen(engine, "commit", lambda _connection: race.before_commit())

    @app.post("/<int:id>")
    @locked
    def count(id: int) -> str:  # noqa: A002
        total = read(session())
        race.read()
        write(session(), total + 1)
        return str(id)

    with counters(database):
        assert race.lost(lambda: app.test_client().post("/7").status_code == 200) == 0
        assert race.total() == 2
    app.extensions["aiorwlock_remote"].close()
    engine.dispose()


def fails() -> str:
    raise ValueError


def is_refused() -> str:
    abort(404)


@pytest.mark.parametrize(
    ("view", "status"), [(lambda: "done", 200), (fails, 409), (is_refused, 404)]
)
def test_held_in_each_teardown(
    app: Flask, view: Callable[[], str], status: int
) -> None:
    """An error that a handler answers is not passed on, so the changes count."""
    seen: list[bool] = []
    app.teardown_request(lambda _: seen.append(is_held(app)))
    app.teardown_appcontext(lambda _: seen.append(is_held(app)))

    @app.after_request
    def after(response: Response) -> Response:
        seen.append(is_held(app))
        return response

    @app.post("/<int:id>")
    @locked
    def any_of_them(id: int) -> str:  # noqa: A002
        del id
        return view()

    assert app.test_client().post("/7").status_code == status
    assert seen == [True, True, True]
    assert not is_held(app)


@pytest.mark.parametrize("where", ["teardown_request", "teardown_appcontext"])
def test_a_teardown_that_fails_releases(app: Flask, where: str) -> None:
    @app.post("/<int:id>")
    @locked
    def done(id: int) -> str:  # noqa: A002
        return str(id)

    @getattr(app, where)  # type: ignore[untyped-decorator]
    def fail(_error: BaseException | None) -> None:
        for seen in get_locks(app).list():
            get_locks(app).force_release(seen, reason="its loss is reported to nobody")
        raise RuntimeError("the commit was refused")

    with pytest.raises(RuntimeError, match="refused"):
        app.test_client().post("/7")
    with get_locks(app).mutex(*LOCK).acquire(timeout=30):
        pass


def test_lost_in_a_teardown_is_503(app: Flask) -> None:
    """And not what the view has returned."""

    def lose(_error: BaseException | None) -> None:
        for seen in get_locks(app).list():
            get_locks(app).force_release(seen, reason="test")

    app.teardown_appcontext(lose)

    @app.post("/<int:id>")
    @locked
    def done(id: int) -> Response:  # noqa: A002
        return Response(str(id), headers={"X-Paid": "yes"})

    answer = app.test_client().post("/7")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.mimetype == "application/problem+json"
    assert "X-Paid" not in answer.headers


def test_a_loss_in_the_view_is_raised_to_its_application(app: Flask) -> None:
    """To a handler of its own, before the functions that commit."""
    reported: list[str] = []

    @app.errorhandler(LockLost)
    def answer(error: LockLost) -> tuple[str, int]:
        reported.append(str(error.reason))
        return "lost", 500

    @app.teardown_request
    def end(_error: BaseException | None) -> None:
        reported.append("end")

    @app.post("/<int:id>")
    @locked
    def lose(id: int) -> str:  # noqa: A002
        for seen in get_locks(app).list():
            get_locks(app).force_release(seen, reason="test")
        with pytest.raises(LockLost):
            get_held().extend()
        return str(id)

    assert app.test_client().post("/7").text == "lost"
    assert reported == ["forced", "end"]


def test_a_loss_is_not_put_in_place_of_an_error(app: Flask) -> None:
    @app.post("/<int:id>")
    @locked
    def lose(id: int) -> str:  # noqa: A002
        for seen in get_locks(app).list():
            get_locks(app).force_release(seen, reason=f"test of {id}")
        raise ValueError

    assert app.test_client().post("/7").status_code == 409


def kept(parts: Iterator[str]) -> Iterator[str]:
    """As ``stream_with_context`` of Flask 3.0, which never leaves the contexts."""

    def stream() -> Iterator[str]:
        with request_ctx:
            yield ""
            yield from parts

    streamed = stream()
    next(streamed)
    return streamed


@pytest.mark.parametrize("around", [iter, stream_with_context, kept])
def test_streams(app: Flask, around: Callable[[Iterator[str]], Iterator[str]]) -> None:
    """The lock is held as long as the contexts are kept."""
    torn_down: list[bool] = []
    streamed: list[bool] = []
    app.teardown_appcontext(lambda _: torn_down.append(is_held(app)))

    def parts() -> Iterator[str]:
        streamed.append(is_held(app))
        yield "done"

    @app.post("/<int:id>")
    @locked
    def stream(id: int) -> Response:  # noqa: A002
        return Response(around(parts()), headers={"X-Id": str(id)})

    assert app.test_client().post("/7").text == "done"
    assert not is_held(app)
    assert torn_down[0]
    # Of `stream_with_context` that depends on the version of Flask.
    assert streamed in {iter: [[False]], kept: [[True]]}.get(around, [[False], [True]])


def test_a_stream_that_is_closed_early(app: Flask) -> None:
    """Its contexts are left, and the lock is released, whatever fails in between."""

    def fail(_error: BaseException | None) -> None:
        raise RuntimeError("the commit was refused")

    app.teardown_appcontext(fail)

    @app.post("/<int:id>")
    @locked
    def stream(id: int) -> Response:  # noqa: A002
        return Response(kept(iter(["a", "b", str(id)])))

    answer = app.test_client().post("/7")
    assert is_held(app)
    with pytest.raises(RuntimeError, match="refused"):
        answer.close()
    del answer
    assert not is_held(app)


def test_contexts_around_the_request(app: Flask) -> None:
    """Their ends are not waited for."""

    @app.post("/<int:id>")
    @locked
    def done(id: int) -> str:  # noqa: A002
        g.id = id
        return "done"

    with app.test_client() as http:
        for _ in range(2):
            assert http.post("/7").status_code == 200
            assert g.id == 7
            assert not is_held(app)
    with app.app_context():
        for _ in range(2):
            assert app.test_client().post("/7").status_code == 200
            assert not is_held(app)
    with app.test_request_context("/7", method="POST"):
        assert app.view_functions["done"](id=7) == "done"
        assert not is_held(app)


def test_applications_of_wsgi_inside(app: Flask) -> None:
    """What is put in place of ``wsgi_app`` before, with the old way of writing."""
    inner: Any = an_app()

    def writes(_environ: Any, start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"first, ")
        return [b"second"]

    inner.wsgi_app = writes
    with_locks(inner)
    assert inner.test_client().get("/").text == "first, second"

    def begins_late(_environ: Any, start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"late"

    other: Any = an_app()
    other.wsgi_app = begins_late
    with_locks(other)
    assert other.test_client().get("/").text == "late"
    del app
