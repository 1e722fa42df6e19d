"""The slots of a Redis cluster: which a key belongs to, and which node has it.

After the specification of Redis Cluster: CRC16 (XMODEM) of the key, or of what stands
between its first ``{`` and the next ``}``, modulo 16,384.
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

_MOVED = re.compile(r"MOVED (?P<slot>[0-9]{1,5}) (?P<host>\S*):(?P<port>[0-9]{1,5})")


def hash_tag(key: bytes) -> bytes:
    """The part of a key that counts."""
    first = key.find(b"{")
    if first >= 0:
        last = key.find(b"}", first)
        if last > first + 1:
            return key[first + 1 : last]
    return key


@lru_cache(maxsize=4096)  # each slot that moves looks at all that is under way
def slot_of(key: bytes) -> int:
    """The slot of a key."""
    return crc_hqx(hash_tag(key), 0) % SLOTS


def key_in_same_slot(key: bytes, part: bytes) -> bytes:
    """The name of a key in the same slot: ``{key}part``, or ``k{e}ypart``."""
    return key + part if hash_tag(key) != key else b"{%b}%b" % (key, part)


def check_same_slot(*keys: bytes) -> None:
    """Check that a script can use all of these.

    Raises:
        ConfigurationError: they lie in several slots.
    """
    if len({slot_of(key) for key in keys}) > 1:
        name = keys[0].decode(errors="replace")
        raise ConfigurationError(
            what=f"the keys of {name!r} lie in several slots of the cluster",
            hint="a {tag} in the name keeps them together",
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that said: not mine (any more), but that one's."""

    slot: int
    server: Server


def parse_moved(text: str, asked: Server) -> Moved | None:
    """What a MOVED says; its host may be left out: the one that was asked.

    None if it says nothing of use: a node that does not know the other's name says "?".
    """
    found = _MOVED.fullmatch(text)
    if found is None or found["host"] == "?" or int(found["slot"]) >= SLOTS:
        return None
    return Moved(int(found["slot"]), (found["host"] or asked[0], int(found["port"])))


class SlotMap:
    """Who has which slot, as far as we were told. One thread changes it, any may read.

    ``owners`` is replaced by another list at each change, never changed itself.
    """

    def __init__(self, seeds: Sequence[Server]) -> None:
        """``seeds``: whom to ask first."""
        self.owners: list[Server | None] = [None] * SLOTS
        self._known: tuple[Server, ...] = tuple(seeds)
        self._seeds: tuple[Server, ...] = self._known

    @property
    def primaries(self) -> list[Server]:
        """All that have slots."""
        return [owner for owner in dict.fromkeys(self.owners) if owner is not None]

    @property
    def known(self) -> list[Server]:
        """All that can be asked, replicas too."""
        return list(dict.fromkeys((*self._known, *self._seeds)))

    def note(self, told: Moved) -> None:
        """One slot has another owner."""
        owners = self.owners.copy()
        owners[told.slot] = told.server
        self.owners = owners

    def follow(self, other: SlotMap) -> None:
        """The same as that one's from now on, until either changes."""
        self.owners, self._known = other.owners, other._known

    def learn(self, answer: Any, asked: Server) -> None:  # noqa: ANN401 - as it came
        """The whole map: what a node answered to CLUSTER SLOTS.

        Raises:
            BackendError: nothing that could be used, and nothing is changed. A node
                that was thrown out of its cluster knows of no slots at all.
        """
        owners: list[Server | None] = [None] * SLOTS
        known: dict[Server, None] = {}
        try:
            for first, last, *nodes in answer:
                servers = [_server(node, asked) for node in nodes]
                known.update((server, None) for server in servers if server is not None)
                owners[first : last + 1] = [servers[0]] * (last + 1 - first)
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise Unsupported(
                what=f"{shown(asked)}: what it says of the slots cannot be read ({exc})"
            ) from exc
        if len(owners) != SLOTS:
            raise Unsupported(what=f"{shown(asked)}: it says that there are more slots")
        if not known:
            raise BackendUnavailable(
                what=f"{shown(asked)}: it knows of no node that has slots",
                nothing_done=True,
            )
        self.owners, self._known = owners, tuple(known)


def _server(node: Sequence[Any], asked: Server) -> Server | None:
    host = node[0].decode() if node[0] else asked[0]
    return None if host == "?" else (host, int(node[1]))
