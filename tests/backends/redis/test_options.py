"""URLs of Redis: what they say, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import ConfigurationError


def read(url: str) -> Options:
    return options_of(parse(url), connect_timeout=3.0)


def test_defaults() -> None:
    assert read("redis://localhost") == Options(
        host="localhost", connect_timeout=3.0, command_timeout=3.0
    )


def test_every_option_of_a_url() -> None:
    options = read(
        "rediss://bob:p%40ss@[::1]:7000/3?client_name=web-1&command_timeout=1.5"
        "&ca_file=ca.pem&cert_file=c.pem&key_file=k.pem&verify=no"
    )
    assert options == Options(
        host="::1",
        port=7000,
        db=3,
        username="bob",
        password="p@ss",  # noqa: S106
        client_name="web-1",
        tls=TlsOptions("no", "ca.pem", "c.pem", "k.pem"),
        connect_timeout=3.0,
        command_timeout=1.5,
    )
    assert options.where == "[::1]:7000"


@pytest.mark.parametrize("tls", ["", "s"])
@pytest.mark.parametrize(
    "rest", ["://bob:pw@h:7000/3", "+sentinel://h1,h2/name/3", "+cluster://h1,h2:7000"]
)
def test_valkey_means_the_same(tls: str, rest: str) -> None:
    options = read(f"valkey{tls}{rest}")
    assert options == read(f"redis{tls}{rest}")
    assert (options.tls is not None) == bool(tls)


def test_unix_socket() -> None:
    options = read("unix://:secret@/run/redis%20.sock?db=2")
    assert (options.path, options.db, options.host) == ("/run/redis .sock", 2, "")
    assert options.password == "secret"  # noqa: S105
    assert options.where == "/run/redis .sock"


def test_password_is_in_no_text() -> None:
    options = read("redis://bob:hunter2@localhost")
    assert "hunter2" not in f"{options!r} {options} {options.where}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://bob:12/hunter2@h", "%2F"),
        ("redis+cluster://bob:12/hunter2@h", "%2F"),
        ("redis+sentinel://bob:12/hunter2@h", "%2F"),
        ("redis+cluster://:hunter2,x", "not a host"),
        ("redis+sentinel://:hunter2,x/name", "not a host"),
    ],
)
def test_a_torn_password_is_not_shown(url: str, said: str) -> None:
    """What is not quoted ends up where a host or a database is looked for."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        read(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://", "one node or more"),
        ("redis+cluster://h1,,h2", "not a host"),
        ("redis+cluster://h1,[::1", "one of several is not a host"),
        ("redis+cluster://h1:0", "port from 1"),
        ("redis+cluster://h1,h2:99999", "port from 1"),
        ("redis+cluster://h1/3", "no database but 0"),
        ("redis+cluster://h1?db=1", "no database but 0"),
        ("redis+cluster://h1?ca_file=x", "unknown option"),
        ("redis+cluster://h1?min_replicas=-1", "number from 0"),
    ],
)
def test_refused_of_a_cluster(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(url)


def test_seeds_of_a_cluster() -> None:
    options = read("redis+cluster://bob:pw@h1,[::1]:7001,h1/0")
    assert options.seeds == (("h1", 6379), ("::1", 7001))
    assert options.where == "the cluster of h1:6379, [::1]:7001"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis:///0", "one host"),
        ("redis://a,b:1/0", "one host"),
        ("redis://h:0", "port 0"),
        ("redis://h:99999", "port"),
        ("redis://h/one", "not a number"),
        ("redis://h/-1", "not a number"),
        ("redis://h/1/2", "not a number"),
        ("redis://h/٣", "not a number"),
        ("redis://h/1?db=2", "twice"),
        ("redis://h?db=", "not a number"),
        ("redis://h?verify=no", "unknown option 'verify'"),
        ("redis://h?nonsense=1", "unknown option 'nonsense'"),
        ("redis://h?client_name=a%20b", "client_name"),
        ("redis://h?client_name=", "client_name"),
        ("redis://h?command_timeout=0", "positive"),
        ("redis://h?command_timeout=nan", "positive"),
        ("redis://h?command_timeout=inf", "positive"),
        ("redis://h?command_timeout=soon", "not a number"),
        ("rediss://h?verify=maybe", "yes, chain, no"),
        ("rediss://h?key_file=k.pem", "cert_file"),
        ("unix://", "three slashes"),
        ("unix:///", "three slashes"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix:///run/redis.sock?ca_file=x", "unknown option"),
    ],
)
def test_refused_urls(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(url)


def test_no_tls_no_context() -> None:
    assert read("redis://h").tls_context() is None


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    options = read(f"rediss://h?ca_file={tmp_path}/none.pem")
    with pytest.raises(ConfigurationError, match="certificates for h:6379"):
        options.tls_context()


def test_unverified_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        context = read("rediss://h?verify=no").tls_context()
    assert context is not None
    assert not context.check_hostname
    assert caplog.messages == ["tls_unverified server=h:6379"]
