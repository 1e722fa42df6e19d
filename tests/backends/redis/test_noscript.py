"""Scripts that the server has forgotten: loaded, and run again in order."""

from __future__ import annotations

import pytest

from aiorwlock_remote.backends.redis.connection.protocol import Call
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from tests.backends.redis import protocols
from tests.backends.redis.protocols import Talk
from tests.backends.redis.some_scripts import BOTH, INCR, PUSH

talk = protocols.talk

NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"


def test_forgotten_scripts_are_loaded_and_run_again_in_order(talk: Talk) -> None:
    first, second = talk.run("k", "1"), talk.run("k", "2")
    talk.talk.flush()
    talk.wire.commands()
    talk.talk.received(NOSCRIPT)
    assert talk.handler.events == ["holding"]
    assert talk.wire.written == []  # the second is still under way
    talk.talk.received(NOSCRIPT)
    assert talk.handler.events == ["holding", "ready"]
    assert len(talk.wire.written) == 1
    commands = talk.wire.commands()
    assert [c[:2] for c in commands[:2]] == [[b"SCRIPT", b"LOAD"]] * 2
    assert [(c[0], c[-1]) for c in commands[2:]] == [(b"EVAL", b"1"), (b"EVAL", b"2")]
    talk.talk.received(b"+a\r\n+b\r\n:1\r\n:2\r\n")
    assert (first.result(), second.result()) == (1, 2)


def test_an_overtaken_call_is_not_run_again(talk: Talk) -> None:
    overtaken, other, later = talk.run("k"), talk.run("other"), talk.run("k")
    talk.talk.flush()
    talk.wire.commands()
    talk.talk.received(NOSCRIPT + NOSCRIPT + b":1\r\n")
    with pytest.raises(BackendError, match="not carried out"):
        overtaken.result()
    assert later.result() == 1
    assert [c[3] for c in talk.wire.commands() if c[0] == b"EVAL"] == [b"other"]
    assert not other.done()


def test_a_success_before_it_overtakes_nobody(talk: Talk) -> None:
    refused, before, after = talk.run("a"), talk.run("b"), talk.run("b")
    talk.talk.flush()
    talk.wire.commands()
    talk.talk.received(NOSCRIPT + b":1\r\n" + NOSCRIPT)
    assert before.result() == 1
    assert [c[3] for c in talk.wire.commands() if c[0] == b"EVAL"] == [b"a", b"b"]
    assert [call.done() for call in (refused, after)] == [False, False]


def test_overtaken_scripts_are_not_run_again(talk: Talk) -> None:
    overtaken, _ = talk.run("k"), talk.run("k")
    talk.talk.flush()
    talk.wire.commands()
    talk.talk.received(NOSCRIPT + b":1\r\n")
    assert overtaken.done()
    assert talk.wire.written == []
    assert talk.handler.events == ["holding", "ready"]


def test_lost_while_the_scripts_are_missing(talk: Talk) -> None:
    refused, waiting = talk.run("k"), talk.run("k")
    talk.talk.flush()
    talk.talk.received(NOSCRIPT)
    talk.talk.lost(None)
    assert isinstance(refused.error, BackendUnavailable)
    assert isinstance(waiting.error, BackendUnavailable)


def test_noscript_of_a_plain_command_is_an_error_like_any_other(talk: Talk) -> None:
    call = talk.say("EVALSHA", INCR.sha, 0)
    talk.talk.received(NOSCRIPT)
    assert isinstance(call.error, BackendError)
    assert talk.handler.events == []


def test_any_other_error_of_a_script_is_an_answer(talk: Talk) -> None:
    call = talk.run("k")
    talk.wire.commands()
    talk.talk.received(b"-BADRECORD not a number\r\n")
    assert isinstance(call.error, BackendError)
    assert talk.handler.events == []
    assert talk.wire.written == []


class Key(bytes):
    """Counts with how many others it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


def test_each_of_many_is_not_compared_with_all_that_were_refused(talk: Talk) -> None:
    many = 1000
    keys = [Key(b"%d" % (number % many)) for number in range(2 * many)]
    calls = [talk.send(Call(int, (1, key, "x"), PUSH)) for key in keys]
    talk.talk.received(NOSCRIPT * many)
    talk.talk.received(b":1\r\n" * many)
    assert all(isinstance(call.error, BackendUnavailable) for call in calls[:many])
    assert [call.error for call in calls[many:]] == [None] * many
    assert Key.compared < 10 * many


def test_a_server_that_never_learns_a_script(talk: Talk) -> None:
    """Sent with its text and still not known: that is the answer, once."""
    calls = [talk.run("a"), talk.run("b")]
    talk.talk.received(NOSCRIPT * 2)
    answers = b"+sha\r\n" * len(BOTH) + NOSCRIPT + b":1\r\n"
    talk.talk.received(answers)
    assert type(calls[0].error) is BackendError
    assert calls[1].result() == 1
    assert not talk.talk.in_flight
    later = talk.run("a")
    talk.talk.received(NOSCRIPT)  # forgotten again: it gets the text again
    talk.talk.received(b"+sha\r\n" * len(BOTH) + b":2\r\n")
    assert later.result() == 2
