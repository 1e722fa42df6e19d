"""``file:///dir?option=value`` → where, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError

_YES = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class FileOptions:
    """``create``: make the directory if it is missing. ``sync``: fences survive a power
    cut. ``shared``: by several hosts, so that the file server's clock counts.
    """

    path: str
    create: bool = False
    sync: bool = True
    shared: bool = False

    @classmethod
    def of(cls, address: Address) -> Self:
        """Out of a URL.

        Raises:
            ConfigurationError: no absolute path, a host, or an option that is none.
        """
        address.only("create", "shared", "sync")
        elsewhere = address.host not in {"", "localhost"} or address.port is not None
        path = address.path
        if elsewhere or address.username or not path.strip("/") or "\0" in path:
            raise ConfigurationError(
                what="file needs the absolute path of a directory",
                hint="file:///var/lib/locks, three slashes",
            )
        return cls(
            path=str(Path(path)),
            create=_flag(address, "create", default=False),
            sync=_flag(address, "sync", default=True),
            shared=_flag(address, "shared", default=False),
        )


def _flag(address: Address, name: str, *, default: bool) -> bool:
    text = address.query.get(name)
    if text is None:
        return default
    if text not in _YES:
        raise ConfigurationError(what=f"file: {name}={quoted(text)} is not yes or no")
    return _YES[text]
