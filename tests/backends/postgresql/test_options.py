"""What a ``postgresql://`` URL says, and what it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.postgresql.options import Options, options_of
from aiorwlock_remote.core.url import parse

URL = "postgresql://me:s%40cret@db.example/app"


def options(url: str) -> Options:
    return options_of(parse(url))


def test_a_plain_url() -> None:
    said = options(URL)
    assert (said.host, said.port, said.database) == ("db.example", 5432, "app")
    assert (said.username, said.password) == ("me", "s@cret")
    assert said.listen
    assert not said.tls
    assert said.where == "db.example:5432/app"
    assert "s@cret" not in repr(said)


def test_every_option(tmp_path: Path) -> None:
    said = options(
        f"postgresql://me@:5433/app?host={tmp_path}&schema=locks&connections=3"
        "&call_timeout=0.5&listen=no&statement_cache=no&tls=yes&verify=no"
    )
    assert said.host == str(tmp_path)
    assert said.port == 5433
    assert said.schema == "locks"
    assert said.connections == 3
    assert said.call_timeout == 0.5
    assert not said.listen
    assert not said.statement_cache
    assert said.tls == TlsOptions(verify="no")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///app",
        "postgresql://h1,h2/app",
        "postgresql://h:0/app",
        "postgresql://h",
        "postgresql://h/app?host=/not/there",
        f"{URL}?connections=0",
        f"{URL}?connections=many",
        f"{URL}?call_timeout=0",
        f"{URL}?call_timeout=nan",
        f"{URL}?listen=maybe",
        f"{URL}?schema=a;b",
        f"{URL}?ca_file=x",
        f"{URL}?tls=yes&key_file=x",
        f"{URL}?sslmode=require",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigurationError):
        options(url)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    file: Any = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(ConfigurationError):
        options(f"{URL}?tls=yes&ca_file={file}").tls_context()


def test_listening_elsewhere() -> None:
    elsewhere = "postgresql://me:s%40cret@db.example:5433/app?tls=yes%26verify=no"
    said = options(f"{URL}?statement_cache=no&listen={elsewhere}")
    assert said.listen
    at = said.listen_at
    assert at is not None
    assert (at.where, at.password) == ("db.example:5433/app", "s@cret")
    assert at.tls is not None
    assert "s@cret" not in repr(said)


@pytest.mark.parametrize(
    "listen",
    [
        "maybe",
        "redis://me:s%40cret@db/app",
        "postgresql://me:s%40cret@db",
        "postgresql://me:s%40cret@db/app?listen=no",
    ],
)
def test_nowhere_to_listen(listen: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options(f"{URL}?listen={listen}")
    assert "cret" not in str(caught.value)
