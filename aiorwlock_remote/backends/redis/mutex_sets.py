"""Mutex sets of one server: who uses which, and whom to wake.

Our scripts tell the process whose turn it is. Other programs publish nothing; where the
server has keyspace notifications of sorted sets, we listen to a set while somebody
waits. They are never switched on for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.calls import Call, Raw
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.mutex_set_commands import (
    SetKeys,
    answers,
    decode_ask,
    decode_member,
    decode_release,
    encode_ask,
    encode_member,
    encode_release,
    encode_withdraw,
    pool_of,
    raw,
    shown,
    target_of,
)
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, UnackedGrant
from aiorwlock_remote.backends.redis.replies import legible, yes_no
from aiorwlock_remote.backends.redis.scripts import SET_ENTER, SET_LEAVE
from aiorwlock_remote.core.commands import Command, Release, Reply
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.mutex_set import SetMember, Taken, TakeReplies, TakeRequest
from aiorwlock_remote.ports import StoreSettings

T = TypeVar("T")

Ring = Callable[[str | None], object]

CACHE_SIZE = 1024
SCAN_COUNT = 1000
_CHANGED = frozenset("zA")


class MutexSets:
    """Every mutex set of a ``RedisStore``. Lives in the loop's thread."""

    def __init__(self, db: int, settings: StoreSettings, *, cluster: bool) -> None:
        """``db``: the number is part of what the server tells."""
        self._events = f"__keyspace@{db}__:".encode()
        self._settings = settings
        self.keys: Callable[[str], SetKeys] = lru_cache(CACHE_SIZE)(
            partial(SetKeys, settings, gate=settings.client_id, cluster=cluster)
        )
        self._members: WeakValueDictionary[bytes, RedisMembers]  # by pool
        self._members = WeakValueDictionary()
        self._listening: dict[bytes, list[RedisMembers]] = {}  # by channel
        self._numbers = count()
        self._tells = False
        self.link: Endpoint
        self.replicas: ReplicaAcks | None = None

    def use(
        self, link: Endpoint, events: frozenset[str], replicas: ReplicaAcks | None
    ) -> None:
        """The connection, which events the server tells, who has to have grants."""
        self.link, self._tells = link, bool(events & _CHANGED)
        self.replicas = replicas

    def members(self, name: str, ring: Ring) -> RedisMembers:
        """A user of that set."""
        pool = f"{self._settings.client_id}.{next(self._numbers)}".encode()
        members = self._members[pool] = RedisMembers(self, self.keys(name), pool, ring)
        return members

    def step(self, member: SetMember, command: Command) -> Pending[Reply]:
        """Release or renew one; what comes of it for our own pools is rung."""
        keys = self.keys(member.type)
        script, args = encode_member(keys, command)
        leaves = isinstance(command, Release)
        decode = self.ringing(partial(decode_member, command))
        return self.link.run(script, args, decode, must_go=leaves)

    def message(self, channel: bytes, payload: bytes) -> bool:
        """Somebody told us something; whether it was for a set."""
        listening = self._listening.get(channel)
        if listening is not None:
            for members in listening:
                members.ring(None)
            return True
        return self.rung(payload)

    def wake_all(self) -> None:
        """The connection was lost, and messages with it."""
        for members in list(self._members.values()):
            members.ring(None)

    def listen(self, members: RedisMembers) -> None:
        """Tell these of every change, if the server tells us."""
        if self._tells:
            channel = self._events + members.keys.key
            self._listening.setdefault(channel, []).append(members)
            self.link.subscribe(channel)

    def unlisten(self, members: RedisMembers) -> None:
        """Not any more."""
        channel = self._events + members.keys.key
        listening = self._listening.get(channel, [])
        if members in listening:
            listening.remove(members)
            if not listening:
                del self._listening[channel]
                self.link.unsubscribe(channel)

    def ringing(self, decode: Callable[[Raw], T]) -> Callable[[Raw], T]:
        """Decode an answer, and ring those of our pools that it names."""

        @legible()
        def decoded(answer: Raw) -> T:
            value = decode(answer)
            for place in answer[0]:
                self.rung(place)
            return value

        return decoded

    def rung(self, place: bytes) -> bool:
        """It is the turn of a place of ours; whether it is one of a set."""
        members = self._members.get(pool_of(place))
        if members is not None:
            members.ring(target_of(place))
        return members is not None


class RedisMembers:
    """One set, as one pool of ours uses it."""

    def __init__(self, sets: MutexSets, keys: SetKeys, pool: bytes, ring: Ring) -> None:
        self._sets = sets
        self.keys: SetKeys = keys
        self._pool = pool
        self.ring: Ring = ring

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        """Take what is wanted, in one script."""
        script, args = encode_ask(self.keys, self._pool, asks, micros(entry_ttl))
        told = partial(self._told, asks)
        if self._sets.replicas is None:
            return self._sets.link.run(script, args, told)
        call = Call(told, args, script)
        return self._sets.replicas.confirm(call, partial(self._doubt, asks))

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        """Leave places, give back tickets."""
        named = [self._pool + b"," + raw(target) for target in places]
        script, args = encode_withdraw(self.keys, named, tickets, lease)
        decode = self._sets.ringing(_nothing)
        return self._sets.link.run(script, args, decode, must_go=True)

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add one."""
        args = (*self.keys.args, "c", lease, raw(name))
        return self._sets.link.run(SET_ENTER, args, self._sets.ringing(_done))

    def remove(self, name: str) -> Pending[bool]:
        """Remove one."""
        args = (*self.keys.args, "d", raw(name))
        return self._sets.link.run(SET_LEAVE, args, self._sets.ringing(_done))

    def end(self, ticket: str) -> Pending[Reply]:
        """Release one and remove it."""
        script, args = encode_release(self.keys, ticket, remove=True)
        decode = self._sets.ringing(decode_release)
        return self._sets.link.run(script, args, decode, must_go=True)

    async def names(self) -> AsyncIterator[str]:
        """All of them, by ZSCAN."""
        seen: set[bytes] = set()
        cursor: Any = 0
        while True:
            cursor, flat = await self._sets.link.call_at(
                "ZSCAN", self.keys.key, cursor, "COUNT", SCAN_COUNT
            )
            for name in flat[::2]:
                if name not in seen:
                    seen.add(name)
                    yield shown(name)
            if int(cursor) == 0:
                return

    @legible()
    def _told(self, asks: Sequence[TakeRequest], answer: Raw) -> TakeReplies:
        mine: list[str] = []
        told = decode_ask(asks, answer)
        for place in answer[0]:
            if pool_of(place) == self._pool:
                mine.append(target_of(place))
            else:
                self._sets.rung(place)
        return TakeReplies(told, tuple(mine))

    def _doubt(
        self, asks: Sequence[TakeRequest], told: TakeReplies
    ) -> UnackedGrant[TakeReplies] | None:
        both = zip(asks, told.answers, strict=True)
        took = [ask for ask, answer in both if isinstance(answer, Taken)]
        if not took:
            return None

        def instead(error: BaseException) -> TakeReplies:
            tickets = [ask.ticket for ask in took]
            self.withdraw((), tickets, took[0].lease).log_failure()
            # A raised exception collects tracebacks: one each.
            answers = (copy(error) if isinstance(a, Taken) else a for a in told.answers)
            return TakeReplies(tuple(answers), told.rung)

        return UnackedGrant(instead)

    def watch(self) -> None:
        """Listen to the set."""
        self._sets.listen(self)

    def unwatch(self) -> None:
        """Not any more."""
        self._sets.unlisten(self)


def _done(answer: Raw) -> bool:
    (done,) = answers(answer)
    return yes_no(done)


def _nothing(answer: Raw) -> None:
    if answers(answer):
        raise ValueError("an answer where none is due")
