"""``rediss+sentinel://``: real Sentinels and servers over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
    connect,
)
from aiorwlock_remote._util.tls import TlsOptions
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.backends.redis.connections import linked, renewal_channel
from tests.backends.redis.some_scripts import INCR
from tests.servers.certificates import Certificates
from tests.servers.process import until
from tests.servers.redis import RedisServer
from tests.servers.sentinel import Sentinel
from tests.servers.strangers import stranger

pytestmark = pytest.mark.anyio

NAME = "vault"


class Vault:
    """One primary and one Sentinel, which know each other by the name ``localhost``."""

    def __init__(self, folder: Path, files: Certificates) -> None:
        self.files = files
        (folder / "server").mkdir()
        self.server = RedisServer(
            folder / "server",
            config={"tls-auth-clients": "yes"},
            certificates=files,
        )
        self.sentinel = Sentinel(
            folder / "sentinel",
            "sentinel resolve-hostnames yes",
            "sentinel announce-hostnames yes",
            f"sentinel monitor {NAME} localhost {self.server.tls_port} 1",
            certificates=files,
        )

    def url(self, *ports: int, more: str = "") -> str:
        hosts = ",".join(f"localhost:{port}" for port in ports)
        return f"rediss+sentinel://{hosts}/{NAME}/0?{more}"

    @property
    def trusted(self) -> str:
        """Who signed the certificates, and our own."""
        files = self.files
        return (
            f"ca_file={files.authority}"
            f"&cert_file={files.certificate}&key_file={files.key}"
        )

    def close(self) -> None:
        self.sentinel.close()
        self.server.close()


@pytest.fixture(scope="module")
def vault(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Vault]:
    vault = Vault(tmp_path_factory.mktemp("vault"), certificates)
    there = str(vault.server.tls_port).encode()
    ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
    until(lambda: vault.sentinel.ask(*ask) == [b"localhost", there], "it knows")
    yield vault
    vault.close()


def read(url: str) -> Options:
    return options_of(parse(url))


def test_urls() -> None:
    options = read(f"rediss+sentinel://h1,h2:5/{NAME}/3?ca_file=x&verify=chain")
    assert options.tls == TlsOptions("chain", "x")
    assert options.db == 3
    assert options.sentinels == Sentinels(
        NAME, (("h1", 26379), ("h2", 5)), tls=options.tls
    )
    plain = read(f"redis+sentinel://h1/{NAME}").sentinels
    assert plain is not None
    assert plain.tls is None


async def test_locks_over_tls(vault: Vault) -> None:
    """Found, locked, and renewed by the keeper, which finds it by itself."""
    url = vault.url(vault.sentinel.tls_port, more=vault.trusted)
    async with connect(url) as locks, locks.mutex("vault", 1) as held:
        assert held.fence > 0
        assert vault.server.ask("EXISTS", "mutex_locks/vault,1") == 1
    async with linked(url) as link:
        counted = await link.run(INCR, (1, "k"), int)
    keeper = renewal_channel(url)
    renew = partial(keeper.run_many, [(INCR, (1, "k"))], 5)
    assert await anyio.to_thread.run_sync(renew) == [counted + 1]
    await anyio.to_thread.run_sync(keeper.close)


async def test_a_client_without_certificate_is_refused(vault: Vault) -> None:
    trusts = f"ca_file={vault.files.authority}"
    url = vault.url(vault.sentinel.tls_port, more=trusts)
    with pytest.raises(BackendUnavailable):
        async with connect(url, connect_timeout=1):
            pass


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_a_certificate_that_is_not_trusted(vault: Vault, wrong: str) -> None:
    """It is for ``localhost``, and signed by nobody that the system knows."""
    port = vault.sentinel.tls_port
    if wrong == "name":
        url = f"rediss+sentinel://127.0.0.1:{port}/{NAME}/0?{vault.trusted}"
    else:
        url = vault.url(port)
    with pytest.raises(Unsupported, match=f":{port}: its certificate is not trusted"):
        async with connect(url, connect_timeout=3):
            pass


async def test_any_name_of_the_chain(vault: Vault) -> None:
    """``verify=chain``, for Sentinels and servers that are named by their addresses."""
    host = f"127.0.0.1:{vault.sentinel.tls_port}"
    url = f"rediss+sentinel://{host}/{NAME}/0?verify=chain&{vault.trusted}"
    async with connect(url) as locks, locks.mutex("vault", 2):
        pass


def test_strangers_and_silence_cost_no_time(vault: Vault) -> None:
    """A Sentinel without TLS, one that is silent and one that is not there."""
    tls = read(vault.url(1, more=vault.trusted)).tls
    with stranger(None) as gone:
        pass
    with stranger(None) as silent, stranger(b"-ERR plain\r\n") as plain:
        ports = gone, silent, plain, vault.sentinel.port, vault.sentinel.tls_port
        servers = tuple(("localhost", port) for port in ports)
        asked = Sentinels(NAME, servers, tls=tls)
        # Long before the silent one's time is over:
        found = PrimaryFinder(asked, SystemClock()).find(3600).server
        assert found == ("localhost", vault.server.tls_port)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"-ERR plain\r\n", "TLS"), (b"", "TLS|closed"), (None, "no answer in time")],
)
def test_no_tls_there(vault: Vault, answer: bytes | None, said: str) -> None:
    tls = read(vault.url(1, more=vault.trusted)).tls
    with stranger(answer) as port:
        asked = Sentinels(NAME, (("localhost", port),), tls=tls)
        with pytest.raises(BackendUnavailable, match=said):
            PrimaryFinder(asked, SystemClock()).find(0.5)


def test_files_that_cannot_be_read() -> None:
    asked = Sentinels(
        NAME, (("localhost", 1),), tls=TlsOptions(ca_file="/no/such/file")
    )
    with pytest.raises(ConfigurationError, match=NAME):
        PrimaryFinder(asked, SystemClock()).find(0.5)
