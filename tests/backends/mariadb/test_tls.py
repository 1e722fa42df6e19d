"""TLS: what is trusted, and that nothing is said in the clear instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote import BackendError, Unsupported, connect
from tests.backends.mariadb.conftest import speaking_tls
from tests.backends.mariadb.products import Product
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import OWNER, run
from tests.servers.process import IP
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


async def locks_at(url: str) -> None:
    async with connect(url) as locks, locks.mutex("order", 1) as held:
        assert held.fence > 0


async def refused(url: str, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        await locks_at(url)
    return str(caught.value)


async def test_trusted_certificate_authorities(
    start_db: StartMariadb, product: Product, files: Certificates, tmp_path: Path
) -> None:
    server = start_db(config=speaking_tls(files))
    run(
        server.root,
        *("CREATE USER safe REQUIRE SSL", "GRANT ALL ON app.* TO safe"),
        *("CREATE USER known REQUIRE X509", "GRANT ALL ON app.* TO known"),
    )
    base = f"{product.scheme}://safe@localhost:{server.port}/app"
    url = f"{base}?tls=yes&ca_file={files.authority}"
    await locks_at(url)
    assert "ccess denied" in await refused(base, Unsupported)

    other = make_certificates(tmp_path).authority
    said = await refused(f"{base}?tls=yes&ca_file={other}", Unsupported)
    assert "its certificate is not trusted: self-signed" in said
    assert "ca_file=" in said
    await refused(f"{base}?tls=yes&ca_file={other}&verify=chain", Unsupported)
    await locks_at(f"{base}?tls=yes&ca_file={other}&verify=no")

    by_number = url.replace("localhost", IP)
    assert "IP address mismatch" in await refused(by_number, Unsupported)
    await locks_at(f"{by_number}&verify=chain")

    known = url.replace("safe@", "known@")
    await refused(known, Unsupported)
    await locks_at(f"{known}&cert_file={files.certificate}&key_file={files.key}")


async def test_a_server_without_it_hears_nothing(
    start_db: StartMariadb, product: Product
) -> None:
    server = start_db(config=product.without_tls)
    with Proxy(server.port) as proxy:
        await refused(
            f"{product.scheme}://{OWNER}:secret@localhost:{proxy.port}/app?tls=yes",
            BackendError,
        )
        assert proxy.chunks
        assert not any(b"root" in chunk for chunk in proxy.chunks)
