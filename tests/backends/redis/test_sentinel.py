"""Finding the primary: what the URL says, what Sentinels say, and whom to believe."""

from __future__ import annotations

import pytest
from hiredis import pack_command

from aiorwlock_remote.backends.redis import sentinel
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.servers.fix_redis import StartRedis
from tests.servers.sentinel import NAME, SentinelGroup
from tests.servers.strangers import stranger

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"


def read(url: str) -> Options:
    return options_of(parse(url))


def ask(*ports: int, timeout: float = 5.0, name: str = NAME) -> tuple[str, int]:
    servers = tuple((LOCAL, port) for port in ports)
    return PrimaryFinder(Sentinels(name, servers), SystemClock()).find(timeout).server


def bulk(*words: str) -> bytes:
    """An array of strings, as a server writes it."""
    packed: bytes = pack_command(words)  # type: ignore[arg-type]
    return packed


def says(port: int, epoch: int) -> bytes:
    """What a Sentinel answers to both questions."""
    return bulk(LOCAL, str(port)) + bulk("name", NAME, "config-epoch", str(epoch))


def test_urls() -> None:
    options = read("redis+sentinel://bob:pw@h1:1,h2,[::1]:3,[::2]/name/7")
    assert options.sentinels is not None
    assert options.sentinels.servers == (
        *(("h1", 1), ("h2", 26379), ("::1", 3), ("::2", 26379)),
    )
    assert (options.sentinels.name, options.db) == ("name", 7)
    assert (options.username, options.password) == ("bob", "pw")
    assert options.where == "name (Sentinel at h1:1, h2:26379, [::1]:3, [::2]:26379)"


def test_one_sentinel_and_its_password() -> None:
    options = read(
        "redis+sentinel://h:5/name?db=2&sentinel_username=eve&sentinel_password=hunter2"
    )
    assert options.db == 2
    assert options.sentinels == Sentinels("name", (("h", 5),), "eve", "hunter2")
    assert "hunter2" not in f"{options!r} {options.where}"
    assert read("redis+sentinel://h/name").sentinels == Sentinels(
        "name", (("h", 26379),)
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://h1,h2", "name the primary"),
        ("redis+sentinel://h1,h2/", "name the primary"),
        ("redis+sentinel:///name", "one Sentinel or more"),
        ("redis+sentinel://h1,/name", "is not a host"),
        ("redis+sentinel://h1:x,h2/name", "is not a host"),
        ("redis+sentinel://h1:0,h2/name", "no port from 1"),
        ("redis+sentinel://h1:70000,h2/name", "no port from 1"),
        ("redis+sentinel://h1,h2/name/x", "not a number"),
        ("redis+sentinel://h1,h2/name/1?db=2", "twice"),
        ("redis+sentinel://h/name?ca_file=x", "unknown option"),
        ("redis://h?sentinel_password=x", "unknown option"),
    ],
)
def test_refused_urls(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(url)


def test_the_primary_is_found(sentinel_group: SentinelGroup) -> None:
    ports = [sentinel.port for sentinel in sentinel_group.sentinels]
    assert ask(*ports) == (LOCAL, sentinel_group.primary.port)
    assert ask(ports[0]) == (LOCAL, sentinel_group.primary.port)


def test_one_that_is_down_and_one_that_is_silent_cost_no_time(
    sentinel_group: SentinelGroup,
) -> None:
    with stranger(None) as gone:
        pass
    with stranger(None) as silent:
        # Long before the silent one's time is over:
        found = ask(gone, silent, sentinel_group.sentinels[0].port, timeout=3600)
    assert found == (LOCAL, sentinel_group.primary.port)


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_the_one_that_knows_of_the_latest_failover_is_believed(
    newest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "LATE_ANSWERS_TIMEOUT", 5.0)
    epochs = [7, 7, 7]
    epochs[newest] = 8
    with (
        stranger(says(1000, epochs[0])) as one,
        stranger(says(1001, epochs[1])) as two,
        stranger(says(1002, epochs[2])) as three,
    ):
        assert ask(one, two, three) == (LOCAL, 1000 + newest)


def test_a_user_without_the_right_to_ask_for_failovers_gets_the_primary() -> None:
    with stranger(bulk(LOCAL, "1000") + b"-NOPERM no SENTINEL MASTER\r\n") as port:
        assert ask(port) == (LOCAL, 1000)


def test_a_name_nobody_knows(sentinel_group: SentinelGroup) -> None:
    port = sentinel_group.sentinels[0].port
    with pytest.raises(ConfigurationError, match=f":{port}.*no primary 'other'"):
        ask(port, name="other")


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"-NOAUTH Authentication required.\r\n" * 2, Unsupported, "sentinel_password"),
        (b"-ERR unknown command 'SENTINEL'\r\n" * 2, Unsupported, "it is no Sentinel"),
        (b"-ERR ILLEGAL\r\n" * 2, BackendUnavailable, "ILLEGAL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Unsupported, "does not speak"),
        (b":1\r\n:1\r\n", Unsupported, "does not speak"),
        (b"", BackendUnavailable, "closed"),
        (None, BackendUnavailable, "no answer in time"),
    ],
)
def test_servers_that_are_no_sentinel(
    answer: bytes | None,
    kind: type[Exception],
    said: str,
) -> None:
    with stranger(answer) as port, pytest.raises(kind, match=said):
        ask(port, timeout=0.5)


@pytest.mark.parametrize(
    "answer",
    [
        bulk(LOCAL) + bulk("config-epoch", "9"),
        bulk(LOCAL, "9", "9") + bulk("config-epoch", "9"),
        bulk(LOCAL, "port") + bulk("config-epoch", "9"),
        bulk(LOCAL, "65536") + bulk("config-epoch", "9"),
        b"*2\r\n:1\r\n:2\r\n" + bulk("config-epoch", "9"),
        b"*2\r\n$2\r\n\xff\xfe\r\n$1\r\n9\r\n" + bulk("config-epoch", "9"),
        bulk(LOCAL, "9") + bulk("config-epoch"),
        bulk(LOCAL, "9") + bulk("config-epoch", "late"),
        bulk(LOCAL, "9") + b"*2\r\n*0\r\n*0\r\n",
    ],
)
def test_nonsense_of_one_does_not_keep_us_from_the_others(answer: bytes) -> None:
    with stranger(answer) as strange, stranger(says(1000, 1)) as good:
        assert ask(strange, good) == (LOCAL, 1000)
        with pytest.raises(Unsupported, match="does not speak"):
            ask(strange)


def test_sentinels_that_cannot_be_reached() -> None:
    with stranger(None) as gone:
        pass
    with pytest.raises(BackendUnavailable, match=f"no Sentinel tells.*:{gone}"):
        ask(gone)
    lost = Sentinels(NAME, (("no-such-host.invalid", 1),))
    with pytest.raises(BackendUnavailable, match=r"no-such-host\.invalid"):
        PrimaryFinder(lost, SystemClock()).find(5)


def test_the_password_is_sent_and_is_in_no_error(start_redis: StartRedis) -> None:
    server = start_redis(users=["eve on >hunter2 +@all"])
    for username, said in (("eve", "no Sentinel"), ("bob", "sentinel_password")):
        asked = Sentinels(NAME, ((LOCAL, server.port),), username, "hunter2")
        with pytest.raises(Unsupported, match=said) as caught:
            PrimaryFinder(asked, SystemClock()).find(5)
        assert "hunter2" not in f"{caught.value} {caught.value!r}"
