"""Options of a ``cassandra:`` URL, and the statements for the table that it names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote._util.tls import (
    TLS_OPTIONS,
    TlsOptions,
    TlsOptionsMixin,
    tls_options_of,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address, whole_number
from aiorwlock_remote.errors import ConfigurationError

PORT = 9042
TABLE = "mutex_locks"
CONSISTENCIES = ("QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")
SERIAL_CONSISTENCIES = ("SERIAL", "LOCAL_SERIAL")

_KNOWN = (
    *("clock_skew", "consistency", "local_dc", "request_timeout"),
    *("serial_consistency", "table", "tls"),
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class Options(TlsOptionsMixin):
    """Value object: where the cluster is and how to send requests. Hides its password.

    Times are in seconds. ``request_timeout`` is for one request to a silent node,
    ``clock_skew`` is by how much the wall clocks of two processes may differ; if it is
    infinite, wall clocks are never trusted.
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
    tls: TlsOptions | None = None

    @property
    def where(self) -> str:
        """The cluster's name in error messages: hosts and port, or "the session"."""
        return f"{','.join(self.hosts)}:{self.port}" if self.hosts else "the session"

    @property
    def quoted(self) -> str:
        """Keyspace and table, quoted for CQL: ``"keyspace"."table"``."""
        return f'"{self.keyspace}"."{self.table}"'


def options_of(address: Address, *, connect_timeout: float = 5.0) -> Options:
    """Return the options of a ``cassandra:`` URL, or raise ``ConfigurationError``.

    ``connect_timeout``, in seconds, is an argument of ``connect`` and no part of it.
    """
    tls = address.yes("tls", default=False)
    address.only(*_KNOWN, *(TLS_OPTIONS if tls else ()))
    hosts, port = _contact_points(address)
    query = address.query
    serial = address.choice("serial_consistency", "SERIAL", SERIAL_CONSISTENCIES)
    return Options(
        keyspace=check_name("keyspace", address.path.removeprefix("/")),
        hosts=hosts,
        port=port,
        table=check_name("table", query.get("table", TABLE)),
        username=address.username or None,
        password=address.password or None,
        local_dc=query.get("local_dc") or None,
        consistency=address.choice("consistency", "QUORUM", CONSISTENCIES),
        serial_consistency=serial,
        connect_timeout=connect_timeout,
        request_timeout=address.seconds("request_timeout", 2.0, least=0.05),
        clock_skew=address.seconds("clock_skew", 10.0, most=math.inf),
        tls=tls_options_of(address) if tls else None,
    )


def check_name(what: str, name: str) -> str:
    """Return a valid name of a keyspace or table, or raise ``ConfigurationError``.

    ``what`` is "keyspace" or "table". Valid names may stand between quotes in CQL.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            what=f"cassandra: {what} {quoted(name)} is not a valid name",
            hint="cassandra://host1,host2:9042/keyspace; letters, digits, underscores",
        )
    return name


def statement(name: str, options: Options) -> str:
    """Return the text of a statement of ``statements.cql`` for the options' table."""
    return statement_for_table(name, options.quoted)


def statement_for_table(name: str, table: str) -> str:
    """Return the text of a statement of ``statements.cql`` for a (quoted) table."""
    texts = load_statements("aiorwlock_remote.backends.cassandra", "statements.cql")
    return texts[name].replace("{table}", table)


def _contact_points(address: Address) -> tuple[tuple[str, ...], int]:
    text, port = address.host, address.port
    # The driver has one port for all hosts. It is written behind the last one.
    if "," in text:
        text, colon, number = text.rpartition(":")
        if not colon:
            text = number
        elif (found := whole_number(number)) is not None and found < 65536:
            port = found
        else:
            raise ConfigurationError(
                what=f"cassandra: port {quoted(number)} is not from 1 to 65535",
                hint="write the port once, after the last host",
            )
    hosts = tuple(text.split(","))
    if not all(hosts) or (len(hosts) > 1 and any(":" in h for h in hosts)):
        raise ConfigurationError(
            what=f"cassandra: {quoted(address.host)} does not name hosts",
            hint="cassandra://host1,host2:9042/keyspace",
        )
    if port == 0:
        raise ConfigurationError(
            what="cassandra: port 0 cannot be reached", hint=f"the default is {PORT}"
        )
    return hosts, PORT if port is None else port
