"""What a connection trusts: the same files and options for every store."""

from __future__ import annotations

import ssl

from aiorwlock_remote.errors import ConfigurationError


def client_context(
    where: str,
    *,
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
    hostname: bool,
    certificate: bool,
) -> ssl.SSLContext:
    """Reads the files. ``where``: the server, for messages.

    ``hostname``: it must be in the certificate, ``certificate``: which must be signed
    by whom ``ca_file``, or the system, trusts.

    Raises:
        ConfigurationError: a file of certificates or the key cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigurationError(
            what=f"certificates for {where} cannot be used: {exc}",
            hint="ca_file, cert_file and key_file are PEM files",
        ) from exc
    if not hostname:
        context.check_hostname = False
    if not certificate:
        context.verify_mode = ssl.CERT_NONE
    return context
