"""The first words on a connection, and what is read from the answers."""

from __future__ import annotations

import pytest
from hiredis import ReplyError

from aiorwlock_remote.backends.redis.connection.connector import Handshake, Peer
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from tests.backends.redis.some_scripts import BOTH

SECRET = "hunter2"  # noqa: S105
INFO = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n"


def options(url: str) -> Options:
    return options_of(parse(url))


def hello(**fields: object) -> dict[bytes, object]:
    known = {"server": b"redis", "version": b"7.0.15", "id": 7, "role": b"master"}
    return {name.encode(): value for name, value in {**known, **fields}.items()}


def judged(url: str, *answers: object) -> Peer:
    greeting = Handshake(options(url), ())
    for call, answer in zip(greeting.calls, answers, strict=True):
        call.set_result(answer)
    return greeting.judge()


def words(url: str) -> list[tuple[object, ...]]:
    greeting = Handshake(options(url), BOTH, [b"wake"])
    return [call.args for call in greeting.calls]


def test_the_commands_of_the_handshake() -> None:
    assert words("redis://h") == [
        ("HELLO", 3, "SETNAME", "aiorwlock-remote"),
        ("INFO", "server"),
        *(("SCRIPT", "LOAD", script.text) for script in BOTH),
        ("SUBSCRIBE", b"wake"),
    ]


@pytest.mark.parametrize(
    ("url", "auth"),
    [
        ("redis://:pw@h/0", ("AUTH", "default", "pw")),
        ("redis://bob:pw@h/0", ("AUTH", "bob", "pw")),
        ("redis://bob@h/0", ("AUTH", "bob", "")),
    ],
)
def test_users(url: str, auth: tuple[str, ...]) -> None:
    assert words(url)[0] == ("HELLO", 3, *auth, "SETNAME", "aiorwlock-remote")


def test_a_database_is_selected_before_anything_is_subscribed() -> None:
    assert words("redis://h/5")[1] == ("SELECT", 5)


def test_a_server_that_is_fit() -> None:
    assert judged("redis://h", hello(), INFO) == Peer(number=7, run="abc")
    assert judged("redis://h/1", hello(), b"OK", INFO) == Peer(number=7, run="abc")


def test_valkey_is_fit() -> None:
    valkey = hello(server=b"valkey", version=b"8.1.3")
    assert judged("redis://h", valkey, INFO).number == 7


def test_a_user_who_may_not_ask_for_the_run() -> None:
    assert judged("redis://h", hello(), ReplyError("NOPERM no INFO")).run == ""


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (hello(version=b"6.2.14"), Unsupported, r"6\.2\.14.*7\.0"),
        (hello(version=b"5"), Unsupported, r"version is 5;.*7\.0"),
        (hello(role=b"replica"), BackendUnavailable, "replica"),
        (hello(mode=b"sentinel"), Unsupported, "Sentinel"),
        (b"OK", Unsupported, "does not speak"),
        (ReplyError("NOAUTH HELLO must be called"), Unsupported, "password"),
        (ReplyError("WRONGPASS invalid"), Unsupported, "password"),
        (ReplyError("LOADING Redis is loading"), BackendUnavailable, "starting"),
        (ReplyError("ERR unknown command 'HELLO'"), Unsupported, "renamed"),
        (ReplyError("ILLEGAL nonsense"), BackendError, "nonsense"),
    ],
)
def test_a_server_that_is_not(
    answer: object, kind: type[BackendError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        judged("redis://h", answer, INFO)


@pytest.mark.parametrize(
    "text",
    [
        f"ERR unknown command `HELLO`, with args beginning with: `3`, `{SECRET}`",
        f"ERR some proxy does not like {SECRET}",
    ],
)
def test_the_password_is_in_no_error(text: str) -> None:
    with pytest.raises(BackendError) as caught:
        judged(f"redis://bob:{SECRET}@h", ReplyError(text), INFO)
    seen: BaseException | None = caught.value
    while seen is not None:
        assert SECRET not in f"{seen} {seen!r}"
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize("quote", "'\"`")
def test_a_short_password_is_hidden_where_it_is_quoted(quote: str) -> None:
    """Elsewhere the same letters are a part of another word."""
    text = f"ERR no power for {quote}po{quote}"
    with pytest.raises(BackendError) as caught:
        judged("redis://bob:po@h", ReplyError(text), INFO)
    assert "ERR no power for …" in str(caught.value)


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (b"redis_version:5.0.14\r\n", r"version is 5\.0\.14; Redis 7\.0 or later"),
        (INFO, r"version 7\.0\.15 does not know the command HELLO; was it renamed"),
        (ReplyError("NOAUTH"), "of unknown version does not know the command HELLO"),
    ],
)
def test_hello_is_not_known(info: object, said: str) -> None:
    """By an old server, or by one whose HELLO was renamed."""
    with pytest.raises(Unsupported, match=said):
        judged("redis://h", ReplyError("ERR unknown command 'HELLO'"), info)


def test_no_such_database() -> None:
    out_of_range = ReplyError("ERR DB index is out of range")
    with pytest.raises(ConfigurationError, match="no database 99"):
        judged("redis://h/99", hello(), out_of_range, INFO)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NOPERM no SCRIPT", "NOPERM"),
        ("ERR unknown command 'SCRIPT'", "'SCRIPT'; .*rename-command"),
    ],
)
def test_scripts_it_refuses(text: str, said: str) -> None:
    """A server that knows HELLO is not too old."""
    greeting = Handshake(options("redis://h"), BOTH)
    answers = [hello(), INFO, b"sha", ReplyError(text)]
    for call, answer in zip(greeting.calls, answers, strict=True):
        call.set_result(answer)
    with pytest.raises(Unsupported, match=said):
        greeting.judge()
