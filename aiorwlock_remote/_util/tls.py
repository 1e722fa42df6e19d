"""TLS for every store: the same options and certificate files."""

from __future__ import annotations

import logging
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass

from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event

TLS_OPTIONS = ("ca_file", "cert_file", "key_file", "verify")

log: logging.Logger = logging.getLogger("aiorwlock_remote.tls")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Paths of PEM files, and how strictly to verify the server's certificate.

    ``verify``: "yes" demands a signature by an authority in ``ca_file`` (None: one that
    the system trusts) and the right host name; "chain": any host name; "no": nothing.
    """

    verify: str = "yes"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self, where: str) -> ssl.SSLContext:
        """Read the files, and return a TLS context; ``where`` names the server.

        Raise ``ConfigurationError`` if a certificate or the key cannot be read.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigurationError(
                what=f"certificates for {where} cannot be read: {exc}",
                hint="ca_file, cert_file and key_file are PEM files",
            ) from exc
        # In this order: ``ssl`` refuses CERT_NONE while it has to check the host name.
        if self.verify != "yes":
            context.check_hostname = False
            log_event(log, "tls_unverified", server=where)
        if self.verify == "no":
            context.verify_mode = ssl.CERT_NONE
        return context


class TlsOptionsMixin(ABC):
    """Base of the connection options of a store; field ``tls`` is None without TLS."""

    __slots__ = ()
    tls: TlsOptions | None

    @property
    @abstractmethod
    def where(self) -> str: ...

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for this server; None if TLS is not used."""
        return None if self.tls is None else self.tls.context(self.where)


def tls_options_of(address: Address) -> TlsOptions:
    """Return the TLS options in a URL, or raise ``ConfigurationError``."""
    query = address.query
    if "key_file" in query and "cert_file" not in query:
        raise ConfigurationError(what=f"{address.scheme}: key_file needs cert_file")
    return TlsOptions(
        verify=address.choice("verify", "yes", ("yes", "chain", "no")),
        ca_file=query.get("ca_file"),
        cert_file=query.get("cert_file"),
        key_file=query.get("key_file"),
    )


def certificate_not_trusted(where: str, why: str) -> Unsupported:
    """Return the error for a server ``where`` with a refused certificate: ``why``."""
    return Unsupported(
        what=f"{where}: its certificate is not trusted: {why}",
        hint="ca_file=… names the authority that signed it; verify=no trusts any",
        nothing_done=True,
    )
