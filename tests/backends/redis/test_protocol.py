"""Commands and answers of one connection, byte by byte; no server, no loop."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.backends.redis.connection.protocol import (
    MAX_UNSENT,
    Call,
    ShardUnsubscribeCall,
    SubscribeCall,
    as_is,
)
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    Unsupported,
)
from tests.backends.redis import protocols
from tests.backends.redis.protocols import Talk

talk = protocols.talk


def test_the_first_goes_at_once_the_others_in_one_write(talk: Talk) -> None:
    for word in ("a", "b", "c"):
        _ = talk.say("ECHO", word)
    assert (len(talk.wire.written), talk.wire.woken) == (1, 1)
    talk.talk.flush()
    assert len(talk.wire.written) == 2
    assert [c[1] for c in talk.wire.commands()] == [b"a", b"b", b"c"]
    talk.talk.flush()
    assert talk.wire.written == []


def test_a_reply_after_the_failure_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call: Call[Any] = Call(as_is, ("PING",))
    call.failed(failure := BackendUnavailable(what="no answer in time"))
    call.answered(b"PONG")
    assert call.error is failure
    assert caplog.messages == []


def test_any_cut_of_the_bytes_gives_the_same_answers() -> None:
    answers = (
        b":1\r\n>3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n*2\r\n:2\r\n$-1\r\n+OK\r\n"
    )
    for size in range(1, len(answers) + 1):
        talk = Talk()
        calls = [talk.say("X") for _ in range(3)]
        for start in range(0, len(answers), size):
            talk.talk.received(answers[start : start + size])
        assert [c.result() for c in calls] == [1, [2, None], b"OK"]
        assert talk.handler.messages == [(b"c", b"hi")]
        assert not talk.talk.in_flight


def test_errors_inside_an_answer_reach_the_decoder(talk: Talk) -> None:
    call = talk.say("X")
    talk.talk.received(b"*2\r\n:1\r\n-ERR inside\r\n")
    one, error = call.result()
    assert (one, str(error)) == (1, "ERR inside")


def test_an_error_fails_its_call_alone(talk: Talk) -> None:
    first, second = talk.say("X"), talk.say("Y")
    talk.talk.received(b"-WRONGTYPE Operation\r\n+OK\r\n")
    with pytest.raises(BadRecord):
        first.result()
    assert second.result() == b"OK"


def test_an_error_of_a_decoder_fails_its_call_alone(talk: Talk) -> None:
    def decode(_: object) -> int:
        raise BadRecord(what="unreadable")

    first = talk.send(Call(decode, ("X",)))
    second = talk.say("Y")
    talk.talk.received(b":1\r\n:2\r\n")
    with pytest.raises(BadRecord, match="unreadable"):
        first.result()
    assert second.result() == 2


def test_an_error_of_a_callback_harms_no_other_call(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (talk.say("X") for _ in range(3))

    def fails(_: object) -> None:
        raise LookupError("of the caller")

    first.add_done_callback(fails)
    second.add_done_callback(fails)
    talk.talk.received(b":1\r\n-ERR no\r\n:3\r\n")
    assert first.result() == 1
    assert isinstance(second.error, BackendError)
    assert third.result() == 3
    assert caplog.messages == ["callback_failed"] * 2


def test_subscriptions_are_answered_by_a_push_or_an_error(talk: Talk) -> None:
    first = talk.send(SubscribeCall("SUBSCRIBE", b"a"))
    second = talk.send(SubscribeCall("SUBSCRIBE", b"b"))
    after = talk.say("PING")
    talk.talk.received(b">3\r\n+subscribe\r\n$1\r\na\r\n:1\r\n-NOPERM no\r\n+PONG\r\n")
    assert first.done()
    with pytest.raises(Unsupported):
        second.result()
    assert after.result() == b"PONG"


def test_pushes_of_other_kinds_take_nobodys_answer(talk: Talk) -> None:
    call = talk.say("PING")
    talk.talk.received(b">2\r\n+invalidate\r\n*0\r\n>1\r\n+unsubscribe\r\n+PONG\r\n")
    assert call.result() == b"PONG"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"+unasked\r\n",
        b"%1\r\n%1\r\n+a\r\n:1\r\n:1\r\n",  # a map as the key of a map
    ],
)
def test_bytes_that_are_no_redis_protocol_end_the_connection(
    talk: Talk, data: bytes
) -> None:
    call = talk.say("PING")
    if data.startswith(b"+"):
        data = b"+PONG\r\n" + data
    talk.talk.received(data)
    assert isinstance(talk.handler.error, Unsupported)
    assert talk.wire.hung_up
    assert call.done()


def test_lost_what_was_written_fails_what_was_not_is_given_back(talk: Talk) -> None:
    sent = talk.say("A")
    waiting = [talk.say("B"), talk.say("C")]
    talk.talk.lost(ConnectionResetError(104, "reset"))
    talk.talk.lost(None)  # said once
    assert talk.handler.events == ["ended"]
    assert talk.handler.unsent == waiting
    assert isinstance(sent.error, BackendUnavailable)
    assert not any(call.done() for call in waiting)


def test_each_lost_call_has_an_error_of_its_own(talk: Talk) -> None:
    calls = [talk.say("A"), talk.say("B")]
    talk.talk.flush()
    talk.talk.lost(None)
    assert calls[0].error is not calls[1].error


def test_readonly_hangs_up(talk: Talk) -> None:
    call = talk.say("SET")
    talk.talk.received(b"-READONLY You can't write against a read only replica.\r\n")
    assert isinstance(call.error, BackendUnavailable)
    assert talk.wire.hung_up


def test_too_many_unsent_bytes_are_reported(talk: Talk) -> None:
    _ = talk.say("A"), talk.say("B")
    talk.wire.waiting = MAX_UNSENT + 1
    talk.talk.flush()
    assert talk.handler.events == ["crowded"]


@pytest.mark.parametrize(
    "push",
    [
        pytest.param(b">3\r\n+sunsubscribe\r\n+c\r\n:0\r\n", id="ours"),
        pytest.param(
            b">3\r\n+sunsubscribe\r\n+c\r\n:0\r\n-MOVED 1 h:2\r\n",
            id="the server's, and what it says to ours",
        ),
        pytest.param(b"-NOPERM no\r\n", id="not allowed"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_the_end_of_a_channel_takes_no_others_answer(talk: Talk, push: bytes) -> None:
    """A node that gives a slot away tells the end of its channels by itself."""
    before, leaving = talk.run("a"), ShardUnsubscribeCall(b"c")
    _ = talk.send(leaving)
    after = talk.run("b")
    talk.talk.received(b":1\r\n" + push + b"+PONG\r\n:2\r\n")
    assert (before.result(), leaving.done(), after.result()) == (1, True, 2)
    assert not talk.talk.in_flight
    assert not talk.handler.elsewhere


@pytest.mark.parametrize(
    "answer", [b",1.5\r\n", b"_\r\n", b"#t\r\n", b"*0\r\n", b"*1\r\n*0\r\n"]
)
def test_an_answer_of_a_shape_that_nobody_expects(talk: Talk, answer: bytes) -> None:
    def decode(raw: Any) -> object:  # noqa: ANN401 - as it came
        one, (two,) = raw
        return one[two]

    call = talk.send(Call(decode, ("X",)))
    talk.talk.received(answer)
    assert type(call.error) is BackendError
    assert isinstance(call.error.__cause__, TypeError | ValueError)


@pytest.mark.parametrize("surplus", [b"+OK\r\n", b"-ERR x\r\n"])
def test_a_reply_to_a_call_that_was_not_sent_answers_nothing(
    talk: Talk, surplus: bytes
) -> None:
    """Made while replies are read, it is not on its way yet."""
    made: list[Call[Any]] = []
    sent, last = talk.say("A"), talk.say("B")
    sent.add_done_callback(lambda _: made.append(talk.say("C")))
    talk.talk.received(b"+OK\r\n+OK\r\n" + surplus)
    assert sent.result() == last.result() == b"OK"
    assert not made[0].done()
    assert talk.handler.unsent == made
    assert isinstance(talk.handler.error, Unsupported)
    assert talk.wire.hung_up


def test_a_subscription_that_was_not_sent_is_not_confirmed(talk: Talk) -> None:
    subscribe = SubscribeCall("SUBSCRIBE", b"c")
    sent, last = talk.say("A"), talk.say("B")
    sent.add_done_callback(lambda _: talk.send(subscribe))
    confirmed = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    talk.talk.received(b"+OK\r\n+OK\r\n" + confirmed)
    assert last.result() == b"OK"
    assert not subscribe.done()
    talk.talk.flush()
    talk.talk.received(confirmed)
    assert subscribe.done()
