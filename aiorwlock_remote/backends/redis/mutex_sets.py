"""Mutex sets of one server: who uses which, and whom to wake.

Our scripts tell the process whose turn it is. Other programs publish nothing; where the
server has keyspace notifications of sorted sets, we listen to a set while somebody
waits. They are never switched on for that.

Steps on a mutex set as arguments of a script, and the answers of the scripts.

``lua/mutex_set.lua`` says what they mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.slots import (
    check_same_slot,
    key_in_same_slot,
)
from aiorwlock_remote.backends.redis.connection.calls import Arg, Call, Raw, Request
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.keys import WAKE_PREFIX, channel
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, UnackedGrant
from aiorwlock_remote.backends.redis.replies import (
    bytes_of,
    items_of,
    number_of,
    reading_answer,
    yes_no,
)
from aiorwlock_remote.backends.redis.scripts import SET_ENTER, SET_LEAVE
from aiorwlock_remote.core.commands import (
    Command,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mutex_set import (
    ANY_MEMBER,
    Busy,
    SetMember,
    Taken,
    TakeReplies,
    TakeRequest,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.errors import LossReason, Unsupported
from aiorwlock_remote.ports import StoreSettings

_REASONS: dict[bytes, LossReason] = {
    b"expired": "expired",
    b"stolen": "stolen",
    b"forced": "forced",
}


class SetKeys:
    """The keys of one set: the published one, its name unchanged, and two beside it.

    In a cluster, one more: see ``keys``.
    """

    __slots__ = ("args", "key")

    def __init__(
        self, settings: StoreSettings, name: str, gate: str, *, cluster: bool = False
    ) -> None:
        """``gate``: whose own places are rung by the answer, not by a message.

        Raises:
            ConfigurationError: in a cluster, its keys would lie in several slots.
        """
        self.key: bytes = settings.prefix.encode() + name_to_bytes(name)
        wake = WAKE_PREFIX.encode()
        parts = (b"state", b"queue", wake) if cluster else (b"state", b"queue")
        keys = (self.key, *(key_in_same_slot(self.key, b"." + part) for part in parts))
        if cluster:
            check_same_slot(*keys)
        memory = micros(settings.fence_memory)
        channels = keys[-1] if cluster else channel("")
        self.args: tuple[Arg, ...] = (len(keys), *keys, memory, channels, gate)


def name_to_bytes(name: str) -> bytes:
    """A name as the server has it; other programs' names may be no Unicode."""
    return name.encode("utf-8", "surrogateescape")


def name_from_bytes(name: bytes) -> str:
    """The inverse of ``name_to_bytes``."""
    return name.decode("utf-8", "surrogateescape")


def encode_member(keys: SetKeys, command: Command) -> Request:
    """What a member can do after it was taken.

    Raises:
        Unsupported: it is never asked for anything else.
    """
    if isinstance(command, Release):
        return encode_release(keys, command.ticket, remove=False)
    if isinstance(command, Renew):
        tickets = (ticket for ticket, _ in command.tickets)
        return SET_LEAVE, (*keys.args, "n", *tickets)
    raise Unsupported(what=f"a mutex of a set knows no {type(command).__name__}")


@reading_answer()
def decode_member(command: Command, answer: Raw) -> Reply:
    """The reply to such a command.

    Raises:
        BackendError: none of ours.
    """
    if isinstance(command, Renew):
        outcomes = zip(command.tickets, results_of(answer), strict=True)
        return Renewed(tuple(_decode_renewal(*asked, told) for asked, told in outcomes))
    return decode_release(answer)


def encode_ask(
    keys: SetKeys, pool: bytes, asks: Sequence[TakeRequest], entry_ttl: int
) -> Request:
    """Ask for all of these, in order."""
    args: list[Arg] = [*keys.args, "a", pool, entry_ttl]
    for ask in asks:
        args += (name_to_bytes(ask.target), ask.ticket, ask.lease, int(ask.more))
    return SET_ENTER, tuple(args)


@reading_answer()
def decode_ask(asks: Sequence[TakeRequest], answer: Raw) -> tuple[Taken | Busy, ...]:
    """Who got what of what was asked for.

    Raises:
        BackendError: none of our answers.
    """
    both = zip(asks, results_of(answer), strict=True)
    return tuple(_decode_take(ask, *items_of(told)) for ask, told in both)


def _decode_take(ask: TakeRequest, first: Raw, second: Raw) -> Taken | Busy:
    if number_of(first) > 0:
        name = name_from_bytes(bytes_of(second))
        if ask.target not in {ANY_MEMBER, name}:
            raise ValueError("another mutex than was asked for")
        return Taken(name, first)
    return Busy(None if number_of(second) < 0 else second)


def encode_withdraw(
    keys: SetKeys, places: Sequence[bytes], tickets: Sequence[str], lease: int
) -> Request:
    """Leave these places, and give back what these tickets hold."""
    head = (*keys.args, "t", lease, len(places))
    return SET_LEAVE, (*head, *places, *tickets)


def encode_release(keys: SetKeys, ticket: str, *, remove: bool) -> Request:
    """Give back one, and perhaps remove it from the set."""
    return SET_LEAVE, (*keys.args, "r", ticket, int(remove))


@reading_answer()
def decode_release(answer: Raw) -> Released:
    """Whether the ticket held it.

    Raises:
        BackendError: none of our answers.
    """
    (told,) = results_of(answer)
    held, *why = items_of(told)
    if yes_no(held):
        return Released(held=True)
    return Released(held=False, reason=_REASONS[why[0]])


def results_of(answer: Raw) -> Raw:
    """What follows the places that are rung."""
    for place in items_of(items_of(answer)[0]):
        bytes_of(place)
    return answer[1:]


def pool_of(place: bytes) -> bytes:
    """The pool a place belongs to."""
    return place.partition(b",")[0]


def target_of(place: bytes) -> str:
    """What is waited for at a place."""
    return name_from_bytes(place.partition(b",")[2])


def _decode_renewal(ticket: str, lease: int | None, told: Raw) -> Grant | NotHeld:
    score, *why = items_of(told)
    if number_of(score) <= 0:
        return NotHeld(_REASONS[why[0]])
    return Grant(ticket, Mode.WRITE, score, score, score + (lease or 0))


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

        @reading_answer()
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
        named = [self._pool + b"," + name_to_bytes(target) for target in places]
        script, args = encode_withdraw(self.keys, named, tickets, lease)
        decode = self._sets.ringing(_decode_nothing)
        return self._sets.link.run(script, args, decode, must_go=True)

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add one."""
        args = (*self.keys.args, "c", lease, name_to_bytes(name))
        return self._sets.link.run(SET_ENTER, args, self._sets.ringing(_decode_flag))

    def remove(self, name: str) -> Pending[bool]:
        """Remove one."""
        args = (*self.keys.args, "d", name_to_bytes(name))
        return self._sets.link.run(SET_LEAVE, args, self._sets.ringing(_decode_flag))

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
                    yield name_from_bytes(name)
            if int(cursor) == 0:
                return

    @reading_answer()
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


def _decode_flag(answer: Raw) -> bool:
    (done,) = results_of(answer)
    return yes_no(done)


def _decode_nothing(answer: Raw) -> None:
    if results_of(answer):
        raise ValueError("an answer where none is due")
