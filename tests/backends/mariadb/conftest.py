"""Certificates for servers that run as another user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.certificates import Certificates, make_certificates


@pytest.fixture
def files() -> Iterator[Certificates]:
    """In a folder that the server's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="mariadb-tls-"))
    folder.chmod(0o755)
    certificates = make_certificates(folder)
    certificates.key.chmod(0o644)
    yield certificates
    shutil.rmtree(folder)


def speaking_tls(files: Certificates) -> dict[str, str]:
    """What a server is to be told."""
    return {
        "ssl-ca": str(files.authority),
        "ssl-cert": str(files.certificate),
        "ssl-key": str(files.key),
    }
