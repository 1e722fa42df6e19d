"""Options of an ``etcd:`` or ``etcds:`` URL, and the keys of a resource."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache

from aiorwlock_remote.backends.etcd.grpc_channel import Endpoint, shown
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import (
    TLS_OPTIONS,
    Address,
    Resource,
    TlsOptions,
    resource_from_key,
    tls_options_of,
)

PORT = 2379
FOLDER = "/mutex_locks"
CLAIM, DOORMAN = ",claim", ",doorman"
"""How the other keys of a resource go on where that of its mutex record ends. In this
order: a watch of the range from the mutex record to the first has not the second.
"""

_HOST = re.compile(
    r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Options:
    """Where the cluster is, and how to send requests. Hides its password.

    Times are in seconds. ``folder``: what all keys begin with, before a slash.
    ``request_timeout``: until a silent member counts as lost. ``clock_skew``: by how
    much the wall clocks of two processes may differ; if it is infinite, wall clocks do
    not count.
    """

    endpoints: tuple[Endpoint, ...]
    folder: str = FOLDER
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    request_timeout: float = 2.0
    clock_skew: float = 10.0
    tls: TlsOptions | None = None

    @property
    def where(self) -> str:
        """The cluster's name in error messages."""
        return f"etcd at {','.join(map(shown, self.endpoints))}"

    def keys_of(self, resource: Resource) -> tuple[bytes, bytes, bytes]:
        """Return the keys of a resource's mutex record, of its doorman, and that which
        names the clients that may claim it.
        """
        return _keys_of(self.folder, resource)

    def notices_of(self, client_id: str) -> bytes:
        """Return the key under which a client gets notices; no resource has it."""
        return f"{self.folder}/,{client_id}".encode()

    def resource_of(self, key: bytes) -> tuple[Resource, bool] | None:
        """Return the resource that a key is of, and whether it is its doorman's.

        None: the key is none of a resource's.
        """
        name = key.decode(errors="surrogateescape").removeprefix(f"{self.folder}/")
        is_doorman = name.endswith(DOORMAN)
        resource = resource_from_key(name.removesuffix(DOORMAN))
        # No encoded name has a comma in it.
        is_one = resource.type and resource.id and "," not in resource.id
        return (resource, is_doorman) if is_one else None

    def range_of(self, resource_type: str | None) -> tuple[bytes, bytes]:
        """Return the first key of a type's resources (None: of all), and the end."""
        folder = f"{self.folder}/"
        first = folder if resource_type is None else f"{folder}{resource_type},"
        return first.encode(), end_of(first.encode())


@lru_cache(1024)
def _keys_of(folder: str, resource: Resource) -> tuple[bytes, bytes, bytes]:
    seat = f"{folder}/{resource.key}".encode(errors="surrogateescape")
    return seat, seat + DOORMAN.encode(), seat + CLAIM.encode()


def end_of(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with ``prefix``."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def options_of(address: Address) -> Options:
    """Return the options of a URL, or raise ``ConfigurationError``."""
    tls = address.scheme == "etcds"
    address.only("clock_skew", "request_timeout", *(TLS_OPTIONS if tls else ()))
    if not address.username and address.password:
        raise _invalid(address, "a password without a user name")
    return Options(
        endpoints=_endpoints(address),
        folder=address.path.rstrip("/") or FOLDER,
        username=address.username or None,
        password=address.password or "",
        request_timeout=address.seconds("request_timeout", 2.0, least=0.05),
        clock_skew=address.seconds("clock_skew", 10.0, most=math.inf),
        tls=tls_options_of(address) if tls else None,
    )


def _endpoints(address: Address) -> tuple[Endpoint, ...]:
    if not address.host:
        raise _invalid(address, "the URL names no host")
    if "," not in address.host:
        found = [(address.host, PORT if address.port is None else address.port)]
    else:
        found = [_endpoint(address, part) for part in address.host.split(",")]
    if not all(0 < port < 65536 for _, port in found):
        raise _invalid(address, "a port is not from 1 to 65535")
    return tuple(found)


def _endpoint(address: Address, text: str) -> Endpoint:
    part = _HOST.fullmatch(text)
    if part is None:
        # The text is not shown: it may be a part of a password with a comma in it.
        raise _invalid(address, "one of several is not a host, with a port perhaps")
    return part["six"] or part["host"], int(part["port"] or PORT)


def _invalid(address: Address, what: str) -> ConfigurationError:
    hint = f"{address.scheme}://user:password@host1,host2:2379,host3/folder"
    return ConfigurationError(what=f"{address.scheme}: {what}", hint=hint)
