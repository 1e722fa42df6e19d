"""Certificates for tests: an authority, and one for a server that it signed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.servers.process import needed

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """PEM files; ``authority`` signed ``certificate``. Keys have no password."""

    authority: Path
    certificate: Path
    key: Path

    def for_redis(self, port: int) -> dict[str, str]:
        """Lines of a configuration file: TLS on this port."""
        return {
            "tls-port": str(port),
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.authority),
        }

    def for_etcd(self) -> dict[str, str]:
        """Options of its command line: TLS at the port for clients."""
        return {
            "cert-file": str(self.certificate),
            "key-file": str(self.key),
            "trusted-ca-file": str(self.authority),
        }


def make_certificates(folder: Path, names: str = "DNS:localhost") -> Certificates:
    """For a server that is called by ``names`` alone."""
    openssl = needed("openssl", "openssl")

    def run(*args: str | Path) -> None:
        subprocess.run([openssl, *map(str, args)], check=True, capture_output=True)

    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    certificate, key, request = (folder / f"server.{s}" for s in ("pem", "key", "csr"))
    extensions = folder / "extensions"
    # Python 3.13 wants both of them to say what they are for, and by whom.
    extensions.write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
    run("req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=tests", "-keyout",
        authority_key, "-out", authority,
        "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    run("req", *_KEY, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    run("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key,
        "-days", "2", "-extfile", extensions, "-out", certificate)  # fmt: skip
    return Certificates(authority, certificate, key)
