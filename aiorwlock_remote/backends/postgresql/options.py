"""Options of the store and of a URL ``postgresql://…``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiorwlock_remote.cas.driver import options
from aiorwlock_remote.cas.driver.options import ConnectionOptions, common_options
from aiorwlock_remote.core.url import Address, parse
from aiorwlock_remote.errors import ConfigurationError

PORT = 5432
SCHEMA = "rwlock schema postgresql prints the tables and grants"
EXAMPLE = "postgresql://user:password@host:5432/database"

_KNOWN = "host", "listen", "schema", "statement_cache"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")

check_timeout: partial[float] = partial(options.check_timeout, "postgresql")
check_schema: partial[str] = partial(
    options.check_name, "postgresql", _NAME, "letters, digits, _ and $; no digit first"
)


@dataclass(frozen=True, slots=True)
class Options(ConnectionOptions):
    """Address, login and settings of a PostgreSQL store.

    Args:
        database: Name of the database.
        schema: Schema of the tables; empty for the first of the search path.
        listen: Whether waiting tasks are woken by ``NOTIFY``; else they poll.
        listen_at: Options of a direct connection, to listen on if ``host`` is a pooler
            such as PgBouncer; None to listen on ``host``.
        statement_cache: Whether prepared statements can be used again: False behind a
            pooler that changes sessions between requests.
    """

    port: int = PORT
    database: str = ""
    schema: str = ""
    listen: bool = True
    listen_at: Options | None = None
    statement_cache: bool = True

    @property
    def where(self) -> str:
        if not self.host:
            return "the pool"
        return f"{self.host}:{self.port}/{self.database}"


def options_of(address: Address, connect_timeout: float = 5.0) -> Options:
    """Return the options of a URL, or raise ``ConfigurationError`` for an invalid part.

    ``connect_timeout``, in seconds, is an argument of ``connect`` and no part of it.
    """
    common = common_options(address, "postgresql", PORT, connect_timeout, *_KNOWN)
    query, database = address.query, address.path.removeprefix("/")
    host = query.get("host") or address.host
    if not host or "," in host or address.port == 0 or not database:
        raise ConfigurationError(
            what=f"{address.scheme}: the URL needs one host, a port that is not 0 and "
            "a database",
            hint=f"{EXAMPLE}, or ?host=/folder/of/its/socket",
        )
    if host.startswith("/") and not Path(host).is_dir():
        raise ConfigurationError(what=f"{address.scheme}: {host} is not a directory")
    elsewhere = _listen_options(address, connect_timeout)
    return Options(
        host=host,
        database=database,
        schema=check_schema(query.get("schema", "")),
        listen=elsewhere is not None or address.yes("listen", default=True),
        listen_at=elsewhere,
        statement_cache=address.yes("statement_cache", default=True),
        **common,
    )


def _listen_options(address: Address, connect_timeout: float) -> Options | None:
    url = address.query.get("listen", "")
    if "://" not in url:
        return None
    elsewhere = parse(url)
    if elsewhere.scheme != address.scheme or "listen" in elsewhere.query:
        raise ConfigurationError(
            what=f"{address.scheme}: listen={elsewhere} is not valid",
            hint=f"yes, no, or {EXAMPLE} with %26 for &",
        )
    return options_of(elsewhere, connect_timeout=connect_timeout)
