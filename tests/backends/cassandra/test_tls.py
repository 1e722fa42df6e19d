"""A node that speaks TLS alone, and one that wants to see a certificate as well."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from aiorwlock_remote import BackendUnavailable, Unsupported, connect
from aiorwlock_remote.backends.cassandra.options import options_of, statement
from aiorwlock_remote.core.url import parse
from tests.servers.cassandra import CassandraNode
from tests.servers.cassandra_ring import Visit
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.fix_cassandra import StartCassandra
from tests.servers.process import IP

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


def secured(files: Certificates, *, mutual: bool) -> dict[str, str]:
    """Lines of the node's configuration."""
    identity = files.key.with_name("identity.pem")
    identity.write_text(files.key.read_text() + files.certificate.read_text())
    factory = "org.apache.cassandra.security.PEMBasedSslContextFactory"
    return {
        "client_encryption_options": (
            "{enabled: true, optional: false, "
            f"ssl_context_factory: {{class_name: {factory}}}, "
            f"keystore: {identity}, truststore: {files.authority}, "
            f"require_client_auth: {str(mutual).lower()}}}"
        )
    }


def make_table(node: CassandraNode, files: Certificates) -> None:
    trust = ssl.create_default_context(cafile=str(files.authority))
    trust.check_hostname = False
    trust.load_cert_chain(files.certificate, files.key)
    with Visit(IP, node.port, tls=trust) as visit:
        visit.rows(
            "CREATE KEYSPACE locks WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        options = options_of(parse(f"{node.url}/locks"))
        visit.rows(statement("schema_pair", options))


def url_of(node: CassandraNode, authority: Path, more: str = "") -> str:
    return f"{node.url}/locks?tls=yes&ca_file={authority}{more}"


def identity(files: Certificates) -> str:
    return f"&cert_file={files.certificate}&key_file={files.key}"


async def locks_at(url: str) -> None:
    """Held and released."""
    opening = connect(url, connect_timeout=20)
    async with opening as locks, locks.mutex("order", 1) as held:
        assert held.fence > 0


async def refused(url: str, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        await locks_at(url)
    return str(caught.value)


async def test_the_certificate_authority_is_checked(
    start_cassandra: StartCassandra,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = make_certificates(tmp_path, f"IP:{IP}")
    node = start_cassandra(config=secured(files, mutual=False))
    make_table(node, files)
    url = url_of(node, files.authority)
    await locks_at(url)
    await locks_at(url.replace(IP, "localhost"))  # which the driver looks up

    other = make_certificates(tmp_path_factory.mktemp("other")).authority
    said = await refused(url_of(node, other), Unsupported)
    assert "its certificate is not trusted: unable to get local issuer" in said
    assert "ca_file=" in said
    await refused(url_of(node, other, "&verify=chain"), Unsupported)
    await locks_at(url_of(node, other, "&verify=no"))

    plain = await refused(f"{node.url}/locks", BackendUnavailable)
    assert "no node can be reached" in plain


async def test_a_node_that_wants_a_certificate_of_us(
    start_cassandra: StartCassandra, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    node = start_cassandra(config=secured(files, mutual=True))
    make_table(node, files)
    url = url_of(node, files.authority)
    await locks_at(f"{url}&verify=chain{identity(files)}")
    said = await refused(f"{url}&verify=chain", BackendUnavailable)
    assert "no node can be reached" in said

    # It names localhost, and the driver knows a node by its address.
    said = await refused(f"{url}{identity(files)}", Unsupported)
    assert "is not trusted: IP address mismatch" in said
