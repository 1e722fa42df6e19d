"""What a connection trusts: the same files and options for every store."""

from __future__ import annotations

import logging
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass

from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event

TLS_OPTIONS = ("ca_file", "cert_file", "key_file", "verify")
"""Of a URL."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.tls")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files, and what is demanded of the server's certificate.

    ``verify``: "yes", it is signed by whom ``ca_file``, or the system, trusts, and
    names the host; "chain", whatever host it names; "no", any will do.
    """

    verify: str = "yes"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self, where: str) -> ssl.SSLContext:
        """Reads the files. ``where``: the server, for messages.

        Raises:
            ConfigurationError: a file of certificates or the key cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigurationError(
                what=f"certificates for {where} cannot be used: {exc}",
                hint="ca_file, cert_file and key_file are PEM files",
            ) from exc
        if self.verify != "yes":
            context.check_hostname = False
            log_event(log, "tls_unverified", server=where)
        if self.verify == "no":
            context.verify_mode = ssl.CERT_NONE
        return context


class TlsOptionsMixin(ABC):
    """Options of a store that can be reached over TLS; None: without."""

    __slots__ = ()
    tls: TlsOptions | None

    @property
    @abstractmethod
    def where(self) -> str:
        """The server, for messages."""

    def tls_context(self) -> ssl.SSLContext | None:
        """What TLS trusts; None without TLS. Reads the files.

        Raises:
            ConfigurationError: a file of certificates or the key cannot be used.
        """
        return None if self.tls is None else self.tls.context(self.where)


def tls_options_of(address: Address) -> TlsOptions:
    """What a URL says, if it asks for TLS.

    Raises:
        ConfigurationError: an option cannot be used.
    """
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
    """The server's certificate is not signed by whom we trust, or not for it."""
    return Unsupported(
        what=f"{where}: its certificate is not trusted: {why}",
        hint="ca_file=… names who signed it; verify=no trusts anybody",
        nothing_done=True,
    )
