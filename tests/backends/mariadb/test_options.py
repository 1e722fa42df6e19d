"""What a ``mariadb://`` or ``mysql://`` URL says, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.mariadb import AsyncmyBackend, MariadbBackend
from aiorwlock_remote.backends.mariadb.options import Options, check_name, options_of
from aiorwlock_remote.backends.mysql import MysqlBackend
from aiorwlock_remote.core.url import parse

URL = "mariadb://me:s%40cret@db.example/app"


def options(url: str) -> Options:
    return options_of(parse(url))


@pytest.mark.parametrize("scheme", ["mariadb", "mysql"])
def test_a_plain_url(scheme: str) -> None:
    said = options(URL.replace("mariadb", scheme))
    assert (said.host, said.port, said.database) == ("db.example", 3306, "app")
    assert (said.username, said.password) == ("me", "s@cret")
    assert said.tls is None
    assert said.where == "db.example:3306/app"
    assert "s@cret" not in repr(said)


def test_every_option() -> None:
    said = options(
        "mysql://me@h:3307/app?connections=3&call_timeout=0.5&tls=yes&verify=chain"
    )
    assert said.port == 3307
    assert said.connections == 3
    assert said.call_timeout == 0.5
    assert said.tls == TlsOptions(verify="chain")


@pytest.mark.parametrize(
    "url",
    [
        "mariadb:///app",
        "mariadb://h1,h2/app",
        "mariadb://h:0/app",
        "mariadb://h",
        "mariadb:///app?socket=/not/there",
        f"{URL}?connections=0",
        f"{URL}?connections=many",
        f"{URL}?call_timeout=0",
        f"{URL}?call_timeout=nan",
        f"{URL}?tls=maybe",
        f"{URL}?ca_file=x",
        f"{URL}?tls=yes&key_file=x",
        f"{URL}?charset=latin1",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigurationError):
        options(url)


@pytest.mark.parametrize("name", ["a`b", "a b", "1a", "a;b", "x" * 65])
def test_names_that_cannot_stand_in_a_statement(name: str) -> None:
    with pytest.raises(ConfigurationError):
        check_name("mysql", name)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(ConfigurationError):
        options(f"{URL}?tls=yes&ca_file={file}").tls_context()


@pytest.mark.parametrize("backend", [MariadbBackend, MysqlBackend])
def test_an_object_that_is_no_pool_is_refused(backend: type[AsyncmyBackend]) -> None:
    with pytest.raises(
        ConfigurationError, match="an asyncio pool of asyncmy"
    ) as caught:
        backend(object())
    assert f"{backend.__name__}(await asyncmy.create_pool(" in str(caught.value)
    assert f"'{backend.scheme}+asyncmy://" in str(caught.value)
