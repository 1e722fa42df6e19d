"""Names the Redis keys and channels of a resource, and finds the resource of a key.

The mutex key is the published record. The other keys of the resource have its name in
braces, and so lie in its cluster slot: ``{…}.state``, ``{…}.readers``, ``{…}.queue``;
a semaphore has ``{…}.permits`` instead of readers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

from aiorwlock_remote.backends.redis.cluster.slots import check_same_slot, hash_tag
from aiorwlock_remote.backends.redis.connection.protocol import Script, SendCommand
from aiorwlock_remote.backends.redis.errors import from_decoding
from aiorwlock_remote.backends.redis.scripts import (
    ENTER,
    LEAVE,
    LOOK,
    PAIR_ENTER,
    PAIR_LEAVE,
    PAIR_LOOK,
    PERMIT_ENTER,
    PERMIT_LEAVE,
)
from aiorwlock_remote.core.names import (
    READ_LOCK_PREFIX,
    SEMAPHORE,
    WRITE_LOCK_PREFIX,
    KeyPair,
    PlainKey,
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
_PERMIT_PARTS = ("state", "permits", "queue")
_PAIR_PARTS = ("state", "expiry", "queue")
SCAN_COUNT = 1000
"""About how many keys one SCAN looks at."""

Names = tuple[tuple[bytes, ...], tuple[bytes, ...]]
"""All keys of a script, and those among them that other programs use, too."""


class Keys:
    """The keys of one resource, and the scripts ``enter``, ``leave`` and ``look``.

    Each call of a script begins with ``args``: the number of keys, the keys, and how
    long the record is kept (microseconds). ``published`` are the keys that other
    programs use, too. ``seat``, the key of the mutex record, is the first of all keys
    and the content of wake-up messages.
    """

    __slots__ = ("args", "published", "resource", "seat")

    enter: ClassVar[Script] = ENTER
    leave: ClassVar[Script] = LEAVE
    look: ClassVar[Script] = LOOK
    parts: ClassVar[tuple[str, ...]] = KEY_PARTS

    def __init__(
        self,
        resource: Resource,
        fence_memory: float = 3600.0,
        *,
        cluster: bool = False,
        prefix: str = "",
    ) -> None:
        """Create the keys of ``resource``.

        Args:
            resource: The resource.
            fence_memory: Seconds for which a record is kept after its last use.
            cluster: Whether the server is a cluster.
            prefix: Put before the published names of a ``KeyPair``.

        Raises:
            ConfigurationError: In a cluster, the pair would have different slots.
        """
        keys, published = self._names(resource, prefix, cluster=cluster)
        self.published: tuple[bytes, ...] = published
        self.resource: Resource = resource
        self.seat: bytes = keys[0]
        # The number of keys, the keys, ARGV[1].
        self.args: tuple[int | bytes, ...] = (len(keys), *keys, micros(fence_memory))

    @classmethod
    def _names(cls, resource: Resource, _prefix: str, *, cluster: bool) -> Names:
        # In a cluster a script names one key more, the prefix of the slot's channels,
        # which belong to the slot, too (SPUBLISH). The key never exists: a node that is
        # giving the slot away, or getting it, refuses a script whose keys are not all
        # there (TRYAGAIN), so no script is carried out halfway between two nodes.
        prefix = "" if isinstance(resource, PlainKey) else MUTEX_PREFIX
        seat = f"{prefix}{resource.key}".encode()
        parts = (*cls.parts, WAKE_PREFIX) if cluster else cls.parts
        return (seat, *(b"{%b}.%b" % (seat, part.encode()) for part in parts)), (seat,)


class PermitKeys(Keys):
    """Keys of a semaphore."""

    __slots__ = ()

    enter = PERMIT_ENTER
    leave = PERMIT_LEAVE
    parts: ClassVar[tuple[str, ...]] = _PERMIT_PARTS


class PairKeys(Keys):
    """Keys of a ``KeyPair``: ``readlock:cat:7``, ``writelock:cat:7``, private keys."""

    __slots__ = ()

    enter = PAIR_ENTER
    leave = PAIR_LEAVE
    look = PAIR_LOOK

    @classmethod
    def _names(cls, resource: Resource, prefix: str, *, cluster: bool) -> Names:
        name = f"{resource.type}:{resource.id}"
        writer, readers = (
            f"{prefix}{lock}{name}".encode()
            for lock in (WRITE_LOCK_PREFIX, READ_LOCK_PREFIX)
        )
        if cluster:
            check_same_slot(readers, writer)
        # Ours lie beside the published ones: {readlock:catalog:7}.expiry and the like.
        # If the name has a {tag} of its own, which a cluster demands, they begin with
        # the tag, to lie in the same slot: {tag}.readlock:{tag}:7.expiry. Ours always
        # begin with a brace and the published ones never do, so no name can be both.
        tag = hash_tag(readers)
        start = b"{%b}." % readers if tag == readers else b"{%b}.%b." % (tag, readers)
        beside = (start + part.encode() for part in _PAIR_PARTS)
        last = (start + WAKE_PREFIX.encode(),) if cluster else ()
        return (writer, *beside, readers, *last), (writer, readers)


def keys_of(
    prefix: str, resource: Resource, fence_memory: float, *, cluster: bool = False
) -> Keys:
    """Return the keys of a resource; ``prefix`` begins the names of a ``KeyPair``.

    ``fence_memory``: seconds for which a record is kept after its last use.

    Raises:
        ConfigurationError: In a cluster, the keys would have different slots.
    """
    kind = Keys
    if isinstance(resource, KeyPair):
        kind = PairKeys
    elif resource.is_semaphore:
        kind = PermitKeys
    return kind(resource, fence_memory, cluster=cluster, prefix=prefix)


def wake_channel(client_id: str) -> bytes:
    """Return the channel of a client's wake-up messages; they contain a mutex key."""
    return f"{WAKE_PREFIX}{client_id}".encode()


async def scan_server(
    send: SendCommand, prefix: str, resource_type: str | None
) -> AsyncGenerator[set[Resource], None]:
    """Iterate over the resources at one server; yield a set for each page of SCAN.

    Reads all key names of the database. A resource that exists during the whole scan is
    found, perhaps several times, if it is under ``prefix`` and of the (encoded) type
    ``resource_type``; None: of any type.
    """
    cursor = 0
    pattern = scan_pattern(prefix, resource_type)
    while True:
        page = await send("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        try:
            cursor, names = int(page[0]), page[1]
            found = [resource_of(prefix, name) for name in names]
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise from_decoding(exc, "SCAN") from exc
        resources = {r for r in found if r is not None}
        if resource_type is not None:
            resources = {r for r in resources if _is_of_type(r, prefix, resource_type)}
        yield resources
        if cursor == 0:
            return


def _is_of_type(found: Resource, prefix: str, resource_type: str) -> bool:
    wanted = decode(resource_type.removesuffix(SEMAPHORE))
    kinds_agree = found.is_semaphore is resource_type.endswith(SEMAPHORE)
    return kinds_agree and prefix + found.shown[0] == wanted


def resource_of(prefix: str, name: bytes) -> Resource | None:
    """Return the resource of the key ``name``; None if there is none under ``prefix``.

    A ``KeyPair`` is returned for its two published keys, None for its other keys.
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    for lock in (READ_LOCK_PREFIX, WRITE_LOCK_PREFIX):
        if text.startswith(prefix + lock):
            try:
                return key_pair_from(text[len(prefix + lock) :])
            except ConfigurationError:  # another program's key
                return None
    if text.startswith("{"):
        text, brace, part = text[1:].rpartition("}.")
        if not brace or part not in (*KEY_PARTS, *_PERMIT_PARTS):
            return None
    if not text.startswith(MUTEX_PREFIX):
        return None
    found = resource_from_key(text.removeprefix(MUTEX_PREFIX))
    return resource_under_prefix(found, prefix) if found.type and found.id else None


def scan_pattern(prefix: str, resource_type: str | None) -> str:
    """Return a glob that each key of the wanted resources matches; others may, too."""
    # What mutex_locks/, readlock: and writelock: have in common, so that one reading of
    # the database is enough. The prefix stands behind the first and before the others.
    start = "*[_de]lock[s:]*"
    if resource_type is None:
        return start
    plain = resource_type.removesuffix(SEMAPHORE)
    # A type with special characters is encoded in one kind of name only.
    if "%" in plain:
        return start
    literal = plain.removeprefix(prefix)
    literal = "".join(f"\\{char}" if char in "*?[]\\^" else char for char in literal)
    end = "[,:]" if plain == resource_type else f"{SEMAPHORE},"
    return f"{start}{literal}{end}*"
