"""Contenders for objects in Redis: a set of pending ones, a string for the using one.

The published names are the user's: ``pending:book:42``, ``using:book:42``. Our own keys
lie in the slot of the first: ``{pending:book:42}.since`` and ``.seen``.
``lua/occupancy.lua`` documents them. A using record ends by the TTL of its key.
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
from aiorwlock_remote.backends.redis.codec import (
    bytes_of,
    items_of,
    number_of,
    reading_answer,
    yes_no,
)
from aiorwlock_remote.backends.redis.connection.protocol import Arg, Call, Raw, Script
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.keys import WAKE_PREFIX
from aiorwlock_remote.backends.redis.mutex_sets import name_from_bytes, name_to_bytes
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, UnackedGrant
from aiorwlock_remote.backends.redis.scripts import OCCUPY, VACATE
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges, contender_id
from aiorwlock_remote.core.timing import MICROS

T = TypeVar("T")

CACHE_SIZE = 1024
"""Maximum number of objects whose key names are cached."""


class RedisOccupancyStore:
    """Stores who waits for an object (pending record) and who uses it (using record).

    ``names``: the names of the two keys, with ``%s`` for the name of the object.
    """

    confirms: bool = False

    def __init__(
        self,
        endpoint: Endpoint,
        replicas: ReplicaAcks | None,
        names: tuple[str, str],
        ages: ExpiryAges,
        *,
        cluster: bool,
    ) -> None:
        self.ages: ExpiryAges = ages
        self._endpoint = endpoint
        self._replicas = replicas
        self._lives: Arg = "" if ages.using is None else round(ages.using * 1000)
        self._keys = lru_cache(CACHE_SIZE)(partial(_keys, names, cluster=cluster))

    def sign(self, label: str) -> str:
        return contender_id(label, random_id())

    async def write(self, thing: str, who: str) -> None:
        await self._run(OCCUPY, thing, _done, "w", who)

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the pending records of ``thing``, except that of contender ``who``.

        A record of another program carries no time: its age counts from the first call
        that saw it, as long as the calls follow each other within three seconds.
        """
        return await self._run(OCCUPY, thing, _records, "p", who)

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the using record of ``thing``: one, or none if it is not in use.

        The age is always 0: Redis itself deletes a record that has expired.
        """
        return await self._run(OCCUPY, thing, _user, "u", who)

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        kind = "x" if using else "d"
        await self._run(VACATE, thing, _done, kind, record.who, str(record.mark))

    async def promote(self, thing: str, who: str) -> bool:
        # The only step that grants something, so the only one that replicas confirm.
        if self._replicas is None:
            return await self._run(OCCUPY, thing, _done, "m", who)
        args = self._args(thing, "m", who)
        call: Call[bool] = Call(_done, args, OCCUPY)
        return await self._replicas.confirm(call, _unacked)

    async def extend(self, thing: str, who: str) -> bool:
        return await self._run(VACATE, thing, _done, "e", who)

    async def remove(self, thing: str, who: str) -> bool:
        return await self._run(VACATE, thing, _done, "r", who)

    def check(self, thing: str) -> None:
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
        # What removes a record must be sent even if the connection has to be made anew.
        args = self._args(thing, kind, who, *more)
        return self._endpoint.run(script, args, decode, must_go=script is VACATE)

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
    return [_record(*items_of(item)) for item in items_of(answer)]


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


def _unacked(promoted: bool) -> UnackedGrant[bool] | None:  # noqa: FBT001 - an answer
    return UnackedGrant(lambda error: error) if promoted else None
