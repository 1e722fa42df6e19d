"""The names of a resource's keys, and of the channels where a process hears of it.

The seat is the published mutex record. What belongs to it lies in the same slot of a
cluster, by the braces: ``{…}.state``, ``{…}.readers``, ``{…}.queue``.

In a cluster a script names one key more, with which the channels begin:
``{…}.rwlock.wake/``. They belong to the slot, too (SPUBLISH). And the key never exists:
a node that is giving the slot away, or getting it, refuses whoever names keys that are
not all there (TRYAGAIN), so no script is carried out halfway between two nodes.

The names of a pair's keys: the two published ones as they are, and ours beside them.

``readlock:catalog:7`` and ``writelock:catalog:7``; ``{readlock:catalog:7}.expiry`` and
the like. If the name has a ``{tag}`` of its own, which a cluster demands, ours begin
with it, to lie in the same slot: ``{tag}.readlock:{tag}:7.expiry``. Ours always begin
with a brace and the published ones never do, so no name can be both.

Which resources there are: what the names of keys tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from aiorwlock_remote.backends.redis.cluster.slots import check_same_slot, hash_tag
from aiorwlock_remote.backends.redis.connection.calls import Script, SendCommand
from aiorwlock_remote.backends.redis.errors import from_decoding
from aiorwlock_remote.backends.redis.scripts import (
    ENTER,
    LEAVE,
    LOOK,
    PAIR_ENTER,
    PAIR_LEAVE,
    PAIR_LOOK,
)
from aiorwlock_remote.core.names import (
    READ_LOCK_PREFIX,
    WRITE_LOCK_PREFIX,
    KeyPair,
    Resource,
    decode,
    key_pair_from,
    resource_from_key,
    resource_under_prefix,
)
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.errors import ConfigurationError

MUTEX_PREFIX = "mutex_locks/"
WAKE_PREFIX = "rwlock.wake/"
KEY_PARTS = ("state", "readers", "queue")


class Keys:
    """The keys of one resource, made once and used for every request.

    ``enter``, ``leave``, ``look``: the scripts for these keys. ``seats``: the published
    keys, which other programs change; ``seat`` is the one that messages name.
    """

    __slots__ = ("args", "resource", "seat", "seats")

    enter: ClassVar[Script] = ENTER
    leave: ClassVar[Script] = LEAVE
    look: ClassVar[Script] = LOOK

    def __init__(
        self, resource: Resource, fence_memory: float = 3600.0, *, cluster: bool = False
    ) -> None:
        """``fence_memory``: seconds that a record is kept after its last use."""
        seat = f"{MUTEX_PREFIX}{resource.key}".encode()
        parts = (*KEY_PARTS, WAKE_PREFIX) if cluster else KEY_PARTS
        beside = (b"{%b}.%b" % (seat, part.encode()) for part in parts)
        self._use(resource, (seat, *beside), (seat,), fence_memory)

    def _use(
        self,
        resource: Resource,
        keys: tuple[bytes, ...],
        seats: tuple[bytes, ...],
        fence_memory: float,
    ) -> None:
        self.resource: Resource = resource
        self.seat: bytes = keys[0]
        self.seats: tuple[bytes, ...] = seats
        # What every script begins with: how many keys, the keys, ARGV[1].
        memory = micros(fence_memory)
        self.args: tuple[int | bytes, ...] = (len(keys), *keys, memory)


def channel(gate: str) -> bytes:
    """Where a process hears that it may be its turn: the seat's key is sent."""
    return f"{WAKE_PREFIX}{gate}".encode()


_PAIR_PARTS = ("state", "expiry", "queue")


class PairKeys(Keys):
    """The keys of a pair, made once and used for every request."""

    __slots__ = ()

    enter = PAIR_ENTER
    leave = PAIR_LEAVE
    look = PAIR_LOOK

    def __init__(
        self,
        resource: Resource,
        fence_memory: float = 3600.0,
        *,
        cluster: bool = False,
        prefix: str = "",
    ) -> None:
        """As ``Keys``; ``prefix``: goes before the published names.

        Raises:
            ConfigurationError: in a cluster, the two would lie in different slots.
        """
        name = f"{resource.type}:{resource.id}"
        writer, readers = (
            f"{prefix}{lock}{name}".encode()
            for lock in (WRITE_LOCK_PREFIX, READ_LOCK_PREFIX)
        )
        if cluster:
            check_same_slot(readers, writer)
        tag = hash_tag(readers)
        start = b"{%b}." % readers if tag == readers else b"{%b}.%b." % (tag, readers)
        beside = (start + part.encode() for part in _PAIR_PARTS)
        last = (start + WAKE_PREFIX.encode(),) if cluster else ()
        keys = (writer, *beside, readers, *last)
        self._use(resource, keys, (writer, readers), fence_memory)


def keys_of(
    prefix: str, resource: Resource, fence_memory: float, *, cluster: bool = False
) -> Keys:
    """The keys of a resource, whichever layout it has; ``prefix``: of a pair's.

    Raises:
        ConfigurationError: in a cluster, they would lie in several slots.
    """
    if isinstance(resource, KeyPair):
        return PairKeys(resource, fence_memory, cluster=cluster, prefix=prefix)
    return Keys(resource, fence_memory, cluster=cluster)


SCAN_COUNT = 1000


async def scan_server(
    ask: SendCommand, prefix: str, resource_type: str | None
) -> AsyncIterator[set[Resource]]:
    """The resources at one server, a page of SCAN at a time; perhaps repeatedly.

    It reads every key name of the database. What exists from beginning to end is found.
    """
    cursor = 0
    pattern = scan_pattern(prefix, resource_type)
    wanted = None if resource_type is None else decode(resource_type)
    while True:
        page = await ask("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        try:
            cursor, names = int(page[0]), page[1]
            found = [resource_of(prefix, name) for name in names]
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise from_decoding(exc, "SCAN") from exc
        yield {
            r for r in found if r is not None and wanted in (None, prefix + r.shown[0])
        }
        if cursor == 0:
            return


def resource_of(prefix: str, name: bytes) -> Resource | None:
    """The resource a key belongs to, if it has a name under this prefix.

    Of a pair, its two published keys tell; those beside them are nothing without.
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    for lock in (READ_LOCK_PREFIX, WRITE_LOCK_PREFIX):
        if text.startswith(prefix + lock):
            return _pair(text[len(prefix + lock) :])
    if text.startswith("{"):
        text, brace, part = text[1:].rpartition("}.")
        if not brace or part not in KEY_PARTS:
            return None
    if not text.startswith(MUTEX_PREFIX):
        return None
    found = resource_from_key(text.removeprefix(MUTEX_PREFIX))
    return resource_under_prefix(found, prefix) if found.type and found.id else None


def scan_pattern(prefix: str, resource_type: str | None) -> str:
    """A glob that every key of these resources matches (and others may)."""
    # What mutex_locks/, readlock: and writelock: have in common: one reading for all.
    # The prefix is behind the first and before the others, so it is no part of this.
    start = "*[_de]lock[s:]*"
    if (
        resource_type is None or "%" in resource_type
    ):  # encoded in one kind of name only
        return start
    return f"{start}{_literal(resource_type.removeprefix(prefix))}[,:]*"


def _pair(name: str) -> Resource | None:
    try:
        return key_pair_from(name)
    except ConfigurationError:  # another program's key
        return None


def _literal(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in text)
