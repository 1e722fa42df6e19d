"""``tls=yes``: whose certificates are taken, and whose are not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.oracle.options import options_of
from aiorwlock_remote.core.url import parse
from tests.renewals import renewed
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.oracle.client import IP, OracleUser
from tests.servers.strangers import stranger

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("asyncio does it")]


def secure(user: OracleUser, port: int, more: str, host: str = "localhost") -> str:
    place = f"{IP}:{user.double.port}"
    return f"{user.url.replace(place, f'{host}:{port}')}?tls=yes{more}"


async def locked(url: str) -> None:
    async with connect(url, connect_timeout=20) as locks, locks.mutex("order", 1):
        pass


async def refused(url: str, timeout: float = 20.0) -> LockError:
    with pytest.raises(LockError) as caught:
        async with connect(url, connect_timeout=timeout):
            pass
    return caught.value


@pytest.mark.parametrize("profile", ["12.2", "19c", "23ai"])
async def test_the_certificate_authority_and_the_host_name_are_checked(
    user: OracleUser, certificates: Certificates, profile: str
) -> None:
    user = user.at(profile)
    trusted = f"&ca_file={certificates.authority}"
    with user.double.tls(certificates) as port:
        await locked(secure(user, port, trusted))

        error = await refused(secure(user, port, trusted, IP))
        assert isinstance(error, Unsupported)
        assert "not trusted: it is for another name" in str(error)
        await locked(secure(user, port, f"{trusted}&verify=chain", IP))
        await locked(secure(user, port, "&verify=no", IP))


async def test_an_authority_we_do_not_know(
    user: OracleUser, certificates: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path).authority
    with user.double.tls(certificates) as port:
        for more in (f"&ca_file={other}", f"&ca_file={other}&verify=chain", ""):
            error = await refused(secure(user, port, more))
            assert isinstance(error, Unsupported)
            assert "not trusted: unable to get local issuer" in str(error)
            assert "ca_file" in error.hint


async def test_a_server_that_wants_a_certificate_of_us(
    user: OracleUser, certificates: Certificates
) -> None:
    ours = f"&cert_file={certificates.certificate}&key_file={certificates.key}"
    trusted = f"&ca_file={certificates.authority}"
    with user.double.tls(certificates, mutual=True) as port:
        await locked(secure(user, port, trusted + ours))
        error = await refused(secure(user, port, trusted))
        assert isinstance(error, BackendUnavailable)
        assert "closed the connection" in str(error)


@pytest.mark.usefixtures("renewed_often")
async def test_renewals_go_over_tls_as_well(
    user: OracleUser, certificates: Certificates
) -> None:
    with user.double.tls(certificates) as port:
        url = secure(user, port, f"&ca_file={certificates.authority}")
        async with connect(url) as locks, locks.mutex("order", 1) as held:
            await renewed(held)


async def test_one_side_alone(user: OracleUser, certificates: Certificates) -> None:
    """Who does not speak TLS is taken for one that does not answer."""
    with user.double.tls(certificates) as port:
        plain = user.url.replace(f":{user.double.port}/", f":{port}/")
        assert isinstance(await refused(plain, 1.0), BackendUnavailable)
    url = secure(user, user.double.port, "&verify=no", IP)
    assert isinstance(await refused(url, 1.0), BackendUnavailable)


async def test_a_peer_that_says_nothing(user: OracleUser) -> None:
    with stranger(None) as port:
        error = await refused(secure(user, port, "&verify=no", IP), 0.5)
    assert isinstance(error, BackendUnavailable)


async def test_an_unverified_certificate_is_logged(
    user: OracleUser, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "aiorwlock_remote.tls"),
        user.double.tls(certificates) as port,
    ):
        await locked(secure(user, port, "&verify=no"))
    assert all(found.startswith("tls_unverified ") for found in caplog.messages)
    assert caplog.messages


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?tls=maybe", "tls='maybe'"),
        ("?tls=yes&verify=maybe", "verify='maybe'"),
        ("?tls=yes&key_file=k", "key_file needs cert_file"),
        ("?ca_file=ca.pem", "unknown option 'ca_file'"),
        ("?tls=yes&ca_file=/nowhere/ca.pem", "certificates for h:1521/S cannot be"),
    ],
)
async def test_unusable_tls_options_are_refused(query: str, said: str) -> None:
    """The error comes before any connection is made."""
    error = await refused(f"oracle://u:p@h/S{query}")
    assert isinstance(error, ConfigurationError)
    assert said in str(error)


def test_unless_said_there_is_none() -> None:
    assert options_of(parse("oracle://u:p@h/S")).tls_context() is None
