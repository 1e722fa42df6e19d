"""``cassandra://…`` → how to reach the cluster and how to ask it."""

from __future__ import annotations

import logging
import math
import re
import ssl
from dataclasses import dataclass, field

from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.tls import client_context

PORT = 9042
TABLE = "mutex_locks"
CONSISTENCIES = ("QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")
SERIAL_CONSISTENCIES = ("SERIAL", "LOCAL_SERIAL")

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

_KNOWN = (
    *("clock_skew", "consistency", "local_dc", "request_timeout"),
    *("serial_consistency", "table", "tls"),
)
_TLS = ("ca_file", "cert_file", "key_file", "verify")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
VERIFY = ("yes", "chain", "no")


@dataclass(frozen=True, slots=True)
class Options:
    """Where the cluster is and how to ask it. Its ``repr`` shows no password.

    Seconds: ``connect_timeout`` until the session is up, ``request_timeout`` until a
    silent node counts as lost for one request. ``clock_skew``: by how much the wall
    clocks of any two processes may differ; infinite: wall clocks are never trusted.
    ``verify``: "chain" takes a certificate that names another host, "no" takes any.
    """

    keyspace: str
    hosts: tuple[str, ...] = ()
    port: int = PORT
    table: str = TABLE
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    local_dc: str | None = None
    consistency: str = "QUORUM"
    serial_consistency: str = "SERIAL"
    connect_timeout: float = 5.0
    request_timeout: float = 2.0
    clock_skew: float = 10.0
    tls: bool = False
    verify: str = "yes"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def where(self) -> str:
        """The cluster, for messages."""
        return f"{','.join(self.hosts)}:{self.port}" if self.hosts else "the session"

    @property
    def quoted(self) -> str:
        """The table, as it stands in CQL."""
        return f'"{self.keyspace}"."{self.table}"'

    def tls_context(self) -> ssl.SSLContext | None:
        """What TLS trusts; None without TLS. Reads the files.

        Raises:
            ConfigurationError: a file of certificates or the key cannot be used.
        """
        if not self.tls:
            return None
        context = client_context(
            self.where,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            hostname=self.verify == "yes",
            certificate=self.verify != "no",
        )
        if self.verify != "yes":
            log.warning("tls_unverified", extra={"server": self.where})
        return context


def options_of(address: Address, *, connect_timeout: float = 5.0) -> Options:
    """What a URL says.

    Raises:
        ConfigurationError: a part or an option of it cannot be used.
    """
    tls = _choice(address, "tls", "no", ("yes", "no")) == "yes"
    address.only(*_KNOWN, *(_TLS if tls else ()))
    hosts, port = _contact_points(address)
    query = address.query
    if "key_file" in query and "cert_file" not in query:
        raise ConfigurationError(what=f"{address.scheme}: key_file needs cert_file")
    serial = _choice(address, "serial_consistency", "SERIAL", SERIAL_CONSISTENCIES)
    return Options(
        keyspace=check_name("keyspace", address.path.removeprefix("/")),
        hosts=hosts,
        port=port,
        table=check_name("table", query.get("table", TABLE)),
        username=address.username or None,
        password=address.password or None,
        local_dc=query.get("local_dc") or None,
        consistency=_choice(address, "consistency", "QUORUM", CONSISTENCIES),
        serial_consistency=serial,
        connect_timeout=connect_timeout,
        request_timeout=_seconds(address, "request_timeout", 2.0, least=0.05),
        clock_skew=_seconds(address, "clock_skew", 10.0, most=math.inf),
        tls=tls,
        verify=_choice(address, "verify", "yes", VERIFY),
        ca_file=query.get("ca_file"),
        cert_file=query.get("cert_file"),
        key_file=query.get("key_file"),
    )


def check_name(what: str, name: str) -> str:
    """A keyspace or table name, which goes into CQL in quotes.

    Raises:
        ConfigurationError: anything but letters, digits and underscores.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            what=f"cassandra: {what} {name!r} cannot be used",
            hint="cassandra://host1,host2:9042/keyspace; letters, digits, underscores",
        )
    return name


def _contact_points(address: Address) -> tuple[tuple[str, ...], int]:
    text, port = address.host, address.port
    if "," in text:  # only the last one's port is written, and holds for all
        text, colon, number = text.rpartition(":")
        if not colon:
            text = number
        elif number.isascii() and number.isdigit() and int(number) < 65536:
            port = int(number)
        else:
            raise ConfigurationError(
                what=f"cassandra: port {number!r} is not a number from 0 to 65535",
                hint="the port stands once, after the last host",
            )
    hosts = tuple(text.split(","))
    if not all(hosts) or (len(hosts) > 1 and any(":" in h for h in hosts)):
        raise ConfigurationError(
            what=f"cassandra: {address.host!r} does not name hosts",
            hint="cassandra://host1,host2:9042/keyspace",
        )
    if port == 0:
        raise ConfigurationError(what="cassandra: port 0 cannot be reached")
    return hosts, PORT if port is None else port


def _choice(address: Address, name: str, default: str, known: tuple[str, ...]) -> str:
    text = address.query.get(name, default)
    if text not in known:
        raise ConfigurationError(
            what=f"{address.scheme}: {name}={text!r}", hint=f"known: {', '.join(known)}"
        )
    return text


def _seconds(
    address: Address,
    name: str,
    default: float,
    *,
    least: float = 0.0,
    most: float = 86_400.0,
) -> float:
    number = address.number(name, default)
    if not least <= number <= most:  # NaN neither
        raise ConfigurationError(
            what=f"{address.scheme}: {name}={number:g} is out of range",
            hint=f"seconds, from {least:g} to {most:g}",
        )
    return number
