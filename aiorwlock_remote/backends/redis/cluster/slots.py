"""The slots of a Redis cluster: which slot a key has, and which node has the slot.

As Redis Cluster specifies, a key's slot is the CRC16 (XMODEM) of the key, or of what
stands between its first ``{`` and the next ``}``, modulo 16,384.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from aiorwlock_remote.backends.redis.addresses import Server, shown
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, Unsupported

SLOTS = 16_384
MAX_PORT = 65_536
"""Ports are below this number; 0 stands for a node that has none of this kind."""

_MOVED = re.compile(r"MOVED (?P<slot>[0-9]{1,5}) (?P<host>\S*):(?P<port>[0-9]{1,5})")


def hash_tag(key: bytes) -> bytes:
    """Return the part of ``key`` to hash: between the first braces, or all of it."""
    first = key.find(b"{")
    if first >= 0:
        last = key.find(b"}", first)
        if last > first + 1:
            return key[first + 1 : last]
    return key


# Cached: for each slot that moves, `SlotRouter` looks at all calls in flight.
@lru_cache(maxsize=4096)
def slot_of(key: bytes) -> int:
    """Return the slot of a key, a number below ``SLOTS``."""
    return crc_hqx(hash_tag(key), 0) % SLOTS


def key_in_same_slot(key: bytes, part: bytes) -> bytes:
    """Return ``{key}part`` (of ``k{e}y``: ``k{e}ypart``), a key in the same slot."""
    return key + part if hash_tag(key) != key else b"{%b}%b" % (key, part)


def check_same_slot(*keys: bytes) -> None:
    """Check that all keys have the same slot, so that one script can use them.

    Raises:
        ConfigurationError: The keys have different slots.
    """
    if len({slot_of(key) for key in keys}) > 1:
        name = keys[0].decode(errors="replace")
        raise ConfigurationError(
            what=f"the keys of {name!r} lie in several slots of the cluster",
            hint="a {tag} in the name keeps them together",
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """Value object: ``slot`` now belongs to ``server``, as a node replied."""

    slot: int
    server: Server


def parse_moved(text: str, asked: Server) -> Moved | None:
    """Return what the error reply of the node ``asked`` says if it is MOVED, else None.

    Also None if that node does not know the new owner's host, which it shows as "?". An
    empty host stands for the host of ``asked``.
    """
    found = _MOVED.fullmatch(text)
    if found is None or found["host"] == "?" or int(found["slot"]) >= SLOTS:
        return None
    return Moved(int(found["slot"]), (found["host"] or asked[0], int(found["port"])))


class SlotMap:
    """Maps slots to servers, as far as known.

    One thread changes the map, any may read it: each change replaces the list
    ``owners`` by another one and never modifies it.
    """

    def __init__(self, seeds: Sequence[Server]) -> None:
        """Create an empty map; ``seeds`` are servers that can be asked for the map."""
        self.owners: list[Server | None] = [None] * SLOTS
        self._known: tuple[Server, ...] = tuple(seeds)
        self._seeds: tuple[Server, ...] = self._known

    @property
    def primaries(self) -> list[Server]:
        return [owner for owner in dict.fromkeys(self.owners) if owner is not None]

    @property
    def known(self) -> list[Server]:
        """All servers that can be asked for the map: nodes, replicas and seeds."""
        return list(dict.fromkeys((*self._known, *self._seeds)))

    def note(self, moved: Moved) -> None:
        # A copy: other threads may be reading the present list.
        owners = self.owners.copy()
        owners[moved.slot] = moved.server
        self.owners = owners

    def follow(self, other: SlotMap) -> None:
        """Copy the content of ``other`` once; its later changes are not copied."""
        self.owners, self._known = other.owners, other._known

    def learn(self, reply: Any, asked: Server) -> None:  # noqa: ANN401 - not decoded
        """Replace the whole map by ``reply``, the answer of ``asked`` to CLUSTER SLOTS.

        Raises:
            BackendError: The reply cannot be used, and the map is unchanged. A node
                that was removed from its cluster knows of no slots at all.
        """
        owners: list[Server | None] = [None] * SLOTS
        known: dict[Server, None] = {}
        try:
            for first, last, *nodes in reply:
                # Before a list of that length is made.
                if not 0 <= first <= last < SLOTS:
                    raise ValueError(f"slots {first} to {last}")  # noqa: TRY301
                servers = [_server(node, asked) for node in nodes]
                known.update((server, None) for server in servers if server is not None)
                owners[first : last + 1] = [servers[0]] * (last + 1 - first)
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise Unsupported(
                what=f"{shown(asked)}: its CLUSTER SLOTS cannot be read ({exc})"
            ) from exc
        if not known:
            raise BackendUnavailable(
                what=f"{shown(asked)}: it knows of no node that has slots",
                nothing_done=True,
            )
        self.owners, self._known = owners, tuple(known)


def _server(node: Sequence[Any], asked: Server) -> Server | None:
    host, port = node[0].decode() if node[0] else asked[0], int(node[1])
    if not 0 <= port < MAX_PORT:
        raise ValueError(f"port {port}")
    return None if host == "?" else (host, port)
