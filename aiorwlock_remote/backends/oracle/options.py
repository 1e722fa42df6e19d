"""Options of the store and of a URL ``oracle://…``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from aiorwlock_remote.cas.driver import options
from aiorwlock_remote.cas.driver.options import ConnectionOptions, common_options
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError

PORT = 1521
SCHEMA = "rwlock schema oracle prints the tables and grants"
EXAMPLE = "oracle://user:password@host:1521/service"

_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.$#-]*")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_$#]{0,127}")

check_timeout: partial[float] = partial(options.check_timeout, "oracle")
check_schema: partial[str] = partial(
    options.check_name, "oracle", _NAME, "letters, digits, _ $ #; a letter first"
)


@dataclass(frozen=True, slots=True)
class Options(ConnectionOptions):
    """Address, login and settings of an Oracle store.

    Args:
        service: Name of the database's service.
        schema: Owner of the tables; empty for the user itself.
    """

    port: int = PORT
    service: str = ""
    schema: str = ""

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}/{self.service}" if self.host else "the pool"


def options_of(address: Address, connect_timeout: float = 5.0) -> Options:
    """Return the options of a URL, or raise ``ConfigurationError`` for an invalid part.

    ``connect_timeout``, in seconds, is an argument of ``connect`` and no part of it.
    """
    common = common_options(address, "oracle", PORT, connect_timeout, "schema")
    service = address.path.removeprefix("/")
    if not (address.host and address.username and address.password):
        raise ConfigurationError(
            what="oracle: the URL needs a user, a password and a host", hint=EXAMPLE
        )
    if "," in address.host or address.port == 0:
        raise ConfigurationError(
            what="oracle: the URL needs one host, and a port that is not 0",
            hint=EXAMPLE,
        )
    if not _SERVICE.fullmatch(service):
        raise ConfigurationError(
            what=f"oracle: {quoted(service)} is not the name of a service", hint=EXAMPLE
        )
    schema = check_schema(address.query.get("schema", ""))
    return Options(host=address.host, service=service, schema=schema, **common)
