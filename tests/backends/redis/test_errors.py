"""One table: what the server and the network say, and what we raise."""

from __future__ import annotations

import ssl

import pytest

from aiorwlock_remote.backends.redis.errors import from_failure, from_reply
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    Unsupported,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", BackendUnavailable),
        ("BUSY Redis is busy running a script", BackendUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing", BackendUnavailable),
        ("MASTERDOWN Link with MASTER is down", BackendUnavailable),
        ("CLUSTERDOWN The cluster is down", BackendUnavailable),
        ("READONLY You can't write against a read only replica.", BackendUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", BackendUnavailable),
        ("ERR max number of clients reached", BackendUnavailable),
        ("OOM command not allowed when used memory > 'maxmemory'.", BackendError),
        ("MISCONF Redis is configured to save RDB snapshots", BackendError),
        ("UNKILLABLE Sorry the script already executed writes", BackendError),
        ("EXECABORT Transaction discarded", BackendError),
        ("ERR value is not an integer", BackendError),
        ("WRONGPASS invalid username-password pair", Unsupported),
        ("NOAUTH Authentication required.", Unsupported),
        ("NOPERM this user has no permissions to run 'evalsha'", Unsupported),
        ("DENIED Redis is running in protected mode", Unsupported),
        ("NOPROTO unsupported protocol version", Unsupported),
        ("MOVED 3999 127.0.0.1:6381", Unsupported),
        ("CROSSSLOT Keys in request don't hash to the same slot", Unsupported),
        ("ERR unknown command 'EVALSHA'", Unsupported),
        ("ERR Unknown Redis command called from script script: 8078223d", Unsupported),
        ("ERR The user executing the script can't run this script: 1f", Unsupported),
        ("ERR ACL failure in script: User x has no right script: f42", Unsupported),
        ("WRONGTYPE Operation against a key", BadRecord),
        ("BADRECORD version 7", BadRecord),
    ],
)
def test_error_replies(text: str, kind: type[BackendError]) -> None:
    error = from_reply(text, "h:1")
    assert type(error) is kind
    assert text.partition(" ")[2][:12] in str(error)


@pytest.mark.parametrize(
    ("text", "nothing_done"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("NOPERM User locks has no permissions to run 'evalsha'", True),
        ("OOM command not allowed script: 1a2b, on @user_script:5.", False),
        ("NOPERM no 'del' script: 1a2b, on @user_script:5.", False),
        ("ERR nobody has heard of this", False),
    ],
)
def test_what_was_refused_before_a_script_began_did_nothing(
    text: str, *, nothing_done: bool
) -> None:
    error = from_reply(text, "h:1")
    assert isinstance(error, BackendError)
    assert error.nothing_done is nothing_done


def test_our_scripts_refuse_what_makes_no_sense() -> None:
    error = from_reply("ILLEGAL a reader has nothing to downgrade", "h:1")
    assert type(error) is IllegalCommand
    assert str(error) == "a reader has nothing to downgrade"


def test_arguments_are_never_repeated() -> None:
    error = from_reply(
        "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'hunter2'",
        "h:1",
    )
    assert "hunter2" not in f"{error} {error!r}"
    assert "HELLO" in str(error)


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (None, BackendUnavailable, "closed the connection"),
        (EOFError(), BackendUnavailable, "closed the connection"),
        (TimeoutError(), BackendUnavailable, "no answer in time"),
        (ConnectionRefusedError(111, "refused"), BackendUnavailable, "refused"),
        (OSError(24, "too many files"), BackendUnavailable, "too many files"),
        (UnicodeError("label too long"), BackendUnavailable, "label too long"),
        (BadRecord(what="as it is"), BadRecord, "as it is"),
    ],
)
def test_network_failures(
    failure: Exception | None, kind: type[BackendError], said: str
) -> None:
    error = from_failure(failure, "h:1")
    assert type(error) is kind
    assert said in str(error)


def test_tls_to_a_server_without_it_says_so() -> None:
    failure = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    failure.reason = "WRONG_VERSION_NUMBER"
    error = from_failure(failure, "h:1")
    assert type(error) is BackendUnavailable
    assert "wrong version number" in str(error)
    assert "redis://" in error.hint
