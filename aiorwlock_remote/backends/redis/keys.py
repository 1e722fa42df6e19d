"""The names of a resource's keys, and of the channels where a process hears of it.

The seat is the published mutex record. What belongs to it lies in the same slot of a
cluster, by the braces: ``{…}.state``, ``{…}.readers``, ``{…}.queue``.

In a cluster a script names one key more, with which the channels begin:
``{…}.rwlock.wake/``. They belong to the slot, too (SPUBLISH). And the key never exists:
a node that is giving the slot away, or getting it, refuses whoever names keys that are
not all there (TRYAGAIN), so no script is carried out halfway between two nodes.
"""

from __future__ import annotations

from typing import ClassVar

from aiorwlock_remote.backends.redis.connection.script import Script
from aiorwlock_remote.backends.redis.scripts import ENTER, LEAVE, LOOK
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.names import Resource

SEAT = "mutex_locks/"
WAKE = "rwlock.wake/"
PARTS = ("state", "readers", "queue")


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
        seat = f"{SEAT}{resource.key}".encode()
        parts = (*PARTS, WAKE) if cluster else PARTS
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
    return f"{WAKE}{gate}".encode()
