"""URLs of Cassandra, and what they mean."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.cassandra.options import Options, options_of
from aiorwlock_remote.core.url import parse


def of(url: str) -> Options:
    return options_of(parse(url))


def test_the_plain_url() -> None:
    options = of("cassandra://localhost/locks")
    assert options == Options("locks", ("localhost",))
    assert options.where == "localhost:9042"
    assert options.quoted == '"locks"."mutex_locks"'
    assert options.tls_context() is None


@pytest.mark.parametrize(
    ("hosts", "expected", "port"),
    [
        ("h1,h2,h3", ("h1", "h2", "h3"), 9042),
        ("h1,h2:9143", ("h1", "h2"), 9143),
        ("bob:secret@h1,h2:9143", ("h1", "h2"), 9143),
        ("h1:9143", ("h1",), 9143),
        ("[::1]:9143", ("::1",), 9143),
    ],
)
def test_contact_points(hosts: str, expected: tuple[str, ...], port: int) -> None:
    options = of(f"cassandra://{hosts}/locks")
    assert (options.hosts, options.port) == (expected, port)


def test_every_option() -> None:
    options = of(
        "cassandra://bob:sec%20ret@h1,h2:9143/Locks?local_dc=dc1&table=t1"
        "&consistency=LOCAL_QUORUM&serial_consistency=LOCAL_SERIAL"
        "&request_timeout=0.5&clock_skew=inf&tls=yes&verify=chain&ca_file=ca.pem"
        "&cert_file=c.pem&key_file=k.pem"
    )
    assert options == Options(
        keyspace="Locks",
        hosts=("h1", "h2"),
        port=9143,
        table="t1",
        username="bob",
        password="sec ret",  # noqa: S106 - of a test
        local_dc="dc1",
        consistency="LOCAL_QUORUM",
        serial_consistency="LOCAL_SERIAL",
        request_timeout=0.5,
        clock_skew=math.inf,
        tls=TlsOptions("chain", "ca.pem", "c.pem", "k.pem"),
    )
    assert "sec ret" not in repr(options)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("cassandra://h1", "keyspace ''"),
        ("cassandra://h1/a/b", "keyspace 'a/b'"),
        ('cassandra://h1/a"b', "keyspace 'a\"b'"),
        ("cassandra://h1/locks?table=a%20b", "table 'a b'"),
        ("cassandra:///locks", "does not name hosts"),
        ("cassandra://h1,,h2/locks", "does not name hosts"),
        ("cassandra://h1,h2:x/locks", "port 'x'"),
        ("cassandra://h1:9042,h2/locks", "write the port once"),
        ("cassandra://h1:1,h2:2,h3:3/locks", "does not name hosts"),
        ("cassandra://h1,h2:70000/locks", "port '70000'"),
        ("cassandra://h1:0/locks", "port 0"),
        ("cassandra://h1,h2:0/locks", "port 0"),
        ("cassandra://h1/locks?speed=9", "unknown option 'speed'"),
        ("cassandra://h1/locks?ca_file=x", "unknown option 'ca_file'"),
        ("cassandra://h1/locks?consistency=ONE", "consistency='ONE'"),
        ("cassandra://h1/locks?serial_consistency=QUORUM", "serial_consistency="),
        ("cassandra://h1/locks?clock_skew=-1", "clock_skew=-1"),
        ("cassandra://h1/locks?clock_skew=nan", "clock_skew=nan"),
        ("cassandra://h1/locks?request_timeout=0", "request_timeout=0"),
        ("cassandra://h1/locks?request_timeout=soon", "is not a number"),
        ("cassandra://h1/locks?tls=maybe", "tls='maybe'"),
        ("cassandra://h1/locks?tls=yes&key_file=k", "key_file needs cert_file"),
    ],
)
def test_bad_urls(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        of(url)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing of the kind")
    options = of(f"cassandra://h1/locks?tls=yes&ca_file={file}")
    with pytest.raises(ConfigurationError, match="certificates for h1:9042"):
        options.tls_context()
