"""Who is pending at objects and who uses them, in a set and a string each.

The published names are made as users say: ``pending:book:42``, ``using:book:42``. Ours
lie beside the first, in its slot: ``{pending:book:42}.since`` and ``.seen``.
``lua/occupancy.lua`` says what they mean. A using record's age is its TTL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.backends.redis.cluster.slots import (
    check_same_slot,
    key_in_same_slot,
)
from aiorwlock_remote.backends.redis.connection.calls import Arg, Call, Raw, Script
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.keys import WAKE_PREFIX
from aiorwlock_remote.backends.redis.mutex_sets import name_from_bytes, name_to_bytes
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, UnackedGrant
from aiorwlock_remote.backends.redis.replies import (
    bytes_of,
    items_of,
    number_of,
    reading_answer,
    yes_no,
)
from aiorwlock_remote.backends.redis.scripts import OCCUPY, VACATE
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges, contender_id
from aiorwlock_remote.core.timing import MICROS

T = TypeVar("T")

CACHE_SIZE = 1024


class RedisOccupancyStore:
    """Those of one ``Locks`` under one pair of names."""

    confirms: bool = False

    def __init__(
        self,
        link: Endpoint,
        replicas: ReplicaAcks | None,
        names: tuple[str, str],
        ages: ExpiryAges,
        *,
        cluster: bool,
    ) -> None:
        """``names``: with the prefix, ``%s`` for the object.

        Raises:
            ConfigurationError: in a cluster, two keys would lie in different slots.
        """
        self.ages: ExpiryAges = ages
        self._link = link
        self._replicas = replicas
        self._lives: Arg = "" if ages.using is None else round(ages.using * 1000)
        self._keys = lru_cache(CACHE_SIZE)(partial(_keys, names, cluster=cluster))

    def sign(self, label: str) -> str:
        """With 128 random bits."""
        return contender_id(label, random_id())

    async def write(self, thing: str, who: str) -> None:
        """Add it to the set."""
        await self._run(OCCUPY, thing, _done, "w", who)

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """The rest of the set; one that is not of this library is as old as its sight.

        As long as a look follows the other within three seconds.
        """
        return await self._run(OCCUPY, thing, _records, "p", who)

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """The string; as young as can be: the server removes it when its time comes."""
        return await self._run(OCCUPY, thing, _user, "u", who)

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Take it out if it has that mark still."""
        kind = "x" if using else "d"
        await self._run(VACATE, thing, _done, kind, record.who, str(record.mark))

    async def promote(self, thing: str, who: str) -> bool:
        """Set the string if there is none, then leave the set."""
        if self._replicas is None:
            return await self._run(OCCUPY, thing, _done, "m", who)
        args = self._args(thing, "m", who)
        call: Call[bool] = Call(_done, args, OCCUPY)
        return await self._replicas.confirm(call, _doubt)

    async def extend(self, thing: str, who: str) -> bool:
        """Set its TTL anew."""
        return await self._run(VACATE, thing, _done, "e", who)

    async def remove(self, thing: str, who: str) -> bool:
        """Sent even if the connection has to be made anew."""
        return await self._run(VACATE, thing, _done, "r", who)

    def check(self, thing: str) -> None:
        """Refuse what cannot be changed in one step.

        Raises:
            ConfigurationError: in a cluster, its keys lie in different slots.
        """
        self._keys(thing)

    def _run(
        self,
        script: Script,
        thing: str,
        decode: Callable[[Any], T],
        kind: str,
        who: str,
        *more: Arg,
    ) -> Pending[T]:
        args = self._args(thing, kind, who, *more)
        return self._link.run(script, args, decode, must_go=script is VACATE)

    def _args(self, thing: str, kind: str, who: str, *more: Arg) -> tuple[Arg, ...]:
        keys = self._keys(thing)
        return (len(keys), *keys, kind, name_to_bytes(who), self._lives, *more)


def _keys(names: tuple[str, str], thing: str, *, cluster: bool) -> tuple[bytes, ...]:
    pending, using = (name.replace("%s", thing).encode() for name in names)
    if cluster:
        check_same_slot(pending, using)
    parts = (".since", ".seen", f".{WAKE_PREFIX}") if cluster else (".since", ".seen")
    return (
        pending,
        using,
        *(key_in_same_slot(pending, part.encode()) for part in parts),
    )


@reading_answer()
def _done(answer: Raw) -> bool:
    return yes_no(answer)


@reading_answer()
def _records(answer: Raw) -> list[ContenderRecord]:
    return [_record(*items_of(told)) for told in items_of(answer)]


def _record(who: Raw, age: Raw, mark: Raw) -> ContenderRecord:
    name = name_from_bytes(bytes_of(who))
    return ContenderRecord(name, number_of(age) / MICROS, mark=int(bytes_of(mark)))


@reading_answer()
def _user(answer: Raw) -> list[ContenderRecord]:
    return (
        []
        if answer is None
        else [ContenderRecord(name_from_bytes(bytes_of(answer)), 0.0)]
    )


def _doubt(promoted: bool) -> UnackedGrant[bool] | None:  # noqa: FBT001 - an answer
    return UnackedGrant(lambda error: error) if promoted else None
