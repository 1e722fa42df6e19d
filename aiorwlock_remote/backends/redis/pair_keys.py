"""The names of a pair's keys: the two published ones as they are, and ours beside them.

``readlock:catalog:7`` and ``writelock:catalog:7``; ``{readlock:catalog:7}.expiry`` and
the like. If the name has a ``{tag}`` of its own, which a cluster demands, ours begin
with it, to lie in the same slot: ``{tag}.readlock:{tag}:7.expiry``. Ours always begin
with a brace and the published ones never do, so no name can be both.
"""

from __future__ import annotations

from aiorwlock_remote.backends.redis.cluster.slots import one_slot, tag_of
from aiorwlock_remote.backends.redis.keys import WAKE, Keys
from aiorwlock_remote.backends.redis.scripts import PAIR_ENTER, PAIR_LEAVE, PAIR_LOOK
from aiorwlock_remote.core.key_pair import READ_LOCK, WRITE_LOCK, KeyPair
from aiorwlock_remote.core.names import Resource

_PARTS = ("state", "expiry", "queue")


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
            f"{prefix}{lock}{name}".encode() for lock in (WRITE_LOCK, READ_LOCK)
        )
        if cluster:
            one_slot(readers, writer)
        tag = tag_of(readers)
        start = b"{%b}." % readers if tag == readers else b"{%b}.%b." % (tag, readers)
        beside = (start + part.encode() for part in _PARTS)
        last = (start + WAKE.encode(),) if cluster else ()
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
