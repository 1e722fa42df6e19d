"""A server that is reached by TLS alone, and a role that must show a certificate."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psycopg
import pytest

from aiorwlock_remote import BackendUnavailable, Unsupported, connect
from aiorwlock_remote.backends.postgresql.statements import statements_of
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.postgresql import USER, Postgresql
from tests.servers.process import IP

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

RULES = f"""
hostssl all {USER} {IP}/32 trust
hostssl all app {IP}/32 trust clientcert=verify-ca
"""


def secured(start: StartPostgresql, files: Certificates, home: Path) -> Postgresql:
    """TLS alone; its files where its user may read them."""
    rules = home / "rules"
    rules.write_text(RULES)
    kept = {"hba_file": rules}
    for name, path in (
        ("ssl_ca_file", files.authority),
        ("ssl_cert_file", files.certificate),
        ("ssl_key_file", files.key),
    ):
        kept[name] = Path(shutil.copy(path, home))
        kept[name].chmod(0o600)
    if not os.geteuid():
        for path in (home, *kept.values()):
            shutil.chown(path, USER, USER)
    config = {name: str(path) for name, path in kept.items()}
    return start(config={**config, "ssl": "on"})


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)  # for localhost


@pytest.fixture
def server(
    start_postgresql: StartPostgresql, files: Certificates, open_folder: Path
) -> Postgresql:
    return secured(start_postgresql, files, open_folder)


def url_of(server: Postgresql, more: str = "", *, user: str = USER) -> str:
    return f"postgresql://{user}@localhost:{server.port}/{USER}{more}"


async def locks_at(url: str) -> None:
    """Held and released, and renewed on the way."""
    async with connect(url) as locks, locks.mutex("order", 1) as held:
        await held.extend()


async def refused(url: str, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        await locks_at(url)
    return str(caught.value)


async def test_the_certificate_authority_and_the_host_name_are_checked(
    server: Postgresql, files: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trusted = f"?tls=yes&ca_file={files.authority}"
    url = url_of(server, trusted)
    await locks_at(url)

    other = make_certificates(tmp_path_factory.mktemp("other")).authority
    said = await refused(url_of(server, f"?tls=yes&ca_file={other}"), Unsupported)
    assert "its certificate is not trusted: self-signed certificate in" in said
    assert "ca_file=" in said
    await refused(url_of(server, "?tls=yes"), Unsupported)  # nor by the system

    elsewhere = url.replace("localhost", IP)
    said = await refused(elsewhere, Unsupported)
    assert "is not trusted: IP address mismatch" in said
    await locks_at(f"{elsewhere}&verify=chain")
    await locks_at(url_of(server, f"?tls=yes&ca_file={other}&verify=no"))

    said = await refused(url_of(server), Unsupported)
    assert "no encryption" in said


async def test_a_role_that_must_show_a_certificate(
    server: Postgresql, files: Certificates
) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE app LOGIN")
        for statement in statements_of(user="app"):
            connection.execute(statement)
    url = url_of(server, f"?tls=yes&ca_file={files.authority}", user="app")
    assert "certificate" in await refused(url, Unsupported)
    await locks_at(f"{url}&cert_file={files.certificate}&key_file={files.key}")


async def test_a_server_without_tls(tables: str) -> None:
    said = await refused(f"{tables}?tls=yes", BackendUnavailable)
    assert "SSL" in said
