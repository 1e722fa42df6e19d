"""Mutex sets in Redis: steps as Lua scripts, decoded answers, and wake-ups.

``lua/mutex_set.lua`` documents arguments and answers. A pool is a group of tasks of one
client that use a set together; each queue entry is "pool,target". Our scripts send a
message to the client that is next. Other programs publish nothing: if the server sends
keyspace notifications of sorted sets, a client subscribes to the events of a set while
it waits for a member. Notifications are never switched on for that.
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
from aiorwlock_remote.backends.redis.codec import (
    bytes_of,
    items_of,
    number_of,
    reading_answer,
    yes_no,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    Arg,
    Call,
    Raw,
    Request,
    Script,
)
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.keys import WAKE_PREFIX, wake_channel
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, UnackedGrant
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

T = TypeVar("T")

WakeSet = Callable[[str | None], object]
"""Wakes the tasks that wait for this member of a set; None: all tasks of the set."""

CACHE_SIZE = 1024
"""Maximum number of sets whose keys are cached."""
SCAN_COUNT = 1000
"""About how many members one ZSCAN looks at."""
_CHANGE_EVENTS = frozenset("zA")
"""Letters of ``notify-keyspace-events`` for changes of sorted sets."""
_REASONS: dict[bytes, LossReason] = {
    b"expired": "expired",
    b"stolen": "stolen",
    b"forced": "forced",
}


class SetKeys:
    """The keys of one mutex set: the published sorted set, its state and its queue.

    In a cluster, a fourth key is the prefix of the wake-up channels of the slot.
    """

    __slots__ = ("args", "key")

    def __init__(
        self,
        settings: StoreSettings,
        name: str,
        client_id: str,
        *,
        cluster: bool = False,
    ) -> None:
        """Create the keys of the set ``name``.

        ``client_id``: the script's answer lists the queue entries of this client that
        are to be woken; other clients get a message.

        Raises:
            ConfigurationError: In a cluster, the keys would have different slots.
        """
        self.key: bytes = settings.prefix.encode() + name_to_bytes(name)
        wake = WAKE_PREFIX.encode()
        parts = (b"state", b"queue", wake) if cluster else (b"state", b"queue")
        keys = (self.key, *(key_in_same_slot(self.key, b"." + part) for part in parts))
        if cluster:
            check_same_slot(*keys)
        memory = micros(settings.fence_memory)
        channels = keys[-1] if cluster else wake_channel("")
        self.args: tuple[Arg, ...] = (len(keys), *keys, memory, channels, client_id)


def name_to_bytes(name: str) -> bytes:
    """Encode a name as UTF-8; surrogates become the bytes they were decoded from."""
    return name.encode("utf-8", "surrogateescape")


def name_from_bytes(name: bytes) -> str:
    """Decode a name as UTF-8; undecodable bytes are kept as surrogates."""
    return name.decode("utf-8", "surrogateescape")


def encode_member(keys: SetKeys, command: Command) -> Request:
    """Return the script, and its arguments, that releases or renews a held mutex.

    Raises:
        Unsupported: ``command`` is neither a ``Release`` nor a ``Renew``.
    """
    if isinstance(command, Release):
        return encode_release(keys, command.ticket, remove=False)
    if isinstance(command, Renew):
        tickets = (ticket for ticket, _ in command.tickets)
        return SET_LEAVE, (*keys.args, "n", *tickets)
    raise Unsupported(what=f"a mutex of a set knows no {type(command).__name__}")


@reading_answer()
def decode_member(command: Command, answer: Raw) -> Reply:
    """Return the reply to ``command`` from the answer of ``encode_member``'s script.

    Raises:
        BackendError: The answer cannot be read.
    """
    if isinstance(command, Renew):
        outcomes = zip(command.tickets, results_of(answer), strict=True)
        return Renewed(tuple(_decode_renewal(*asked, item) for asked, item in outcomes))
    return decode_release(answer)


def encode_ask(
    keys: SetKeys, pool: bytes, asks: Sequence[TakeRequest], entry_ttl: int
) -> Request:
    """Return the script that takes those of the mutexes in ``asks`` that are free.

    For each of the others, ``pool`` (a group of waiting tasks) gets a queue entry that
    lives for ``entry_ttl`` microseconds; 0: create none.
    """
    args: list[Arg] = [*keys.args, "a", pool, entry_ttl]
    for ask in asks:
        args += (name_to_bytes(ask.target), ask.ticket, ask.lease, int(ask.more))
    return SET_ENTER, tuple(args)


@reading_answer()
def decode_ask(asks: Sequence[TakeRequest], answer: Raw) -> tuple[Taken | Busy, ...]:
    """Return for each request of ``encode_ask`` what it has taken, or ``Busy``.

    Raises:
        BackendError: The answer cannot be read.
    """
    both = zip(asks, results_of(answer), strict=True)
    return tuple(_decode_take(ask, *items_of(item)) for ask, item in both)


def encode_withdraw(
    keys: SetKeys, entries: Sequence[bytes], tickets: Sequence[str], lease: int
) -> Request:
    """Return the script that removes queue entries, and releases what tickets hold.

    ``lease``: the set's lease (microseconds), which shows which mutexes have expired.
    """
    head = (*keys.args, "t", lease, len(entries))
    return SET_LEAVE, (*head, *entries, *tickets)


def encode_release(keys: SetKeys, ticket: str, *, remove: bool) -> Request:
    """Return the script that releases a mutex and, if ``remove``, deletes it."""
    return SET_LEAVE, (*keys.args, "r", ticket, int(remove))


@reading_answer()
def decode_release(answer: Raw) -> Released:
    """Return ``Released``: whether the ticket held its mutex, or why it did not.

    Raises:
        BackendError: The answer cannot be read.
    """
    (item,) = results_of(answer)
    held, *why = items_of(item)
    if yes_no(held):
        return Released(held=True)
    return Released(held=False, reason=_REASONS[why[0]])


def results_of(answer: Raw) -> Raw:
    """Return an answer without its first item, the queue entries to be woken."""
    for entry in items_of(items_of(answer)[0]):
        bytes_of(entry)
    return answer[1:]


def pool_of(entry: bytes) -> bytes:
    """Return the pool (group of waiting tasks) of a queue entry "pool,target"."""
    return entry.partition(b",")[0]


def target_of(entry: bytes) -> str:
    """Return the mutex that a queue entry "pool,target" waits for; "" is any mutex."""
    return name_from_bytes(entry.partition(b",")[2])


def _decode_take(ask: TakeRequest, first: Raw, second: Raw) -> Taken | Busy:
    if number_of(first) > 0:
        name = name_from_bytes(bytes_of(second))
        if ask.target not in {ANY_MEMBER, name}:
            raise ValueError("another mutex than was asked for")
        return Taken(name, first)
    return Busy(None if number_of(second) < 0 else second)


def _decode_renewal(ticket: str, lease: int | None, item: Raw) -> Grant | NotHeld:
    score, *why = items_of(item)
    if number_of(score) <= 0:
        return NotHeld(_REASONS[why[0]])
    return Grant(ticket, Mode.WRITE, score, score, score + (lease or 0))


def _decode_flag(answer: Raw) -> bool:
    (done,) = results_of(answer)
    return yes_no(done)


def _decode_nothing(answer: Raw) -> None:
    if results_of(answer):
        raise ValueError("an answer where none is due")


class MutexSets:
    """Runs the commands on all mutex sets of a ``RedisStore``; wakes waiting tasks.

    For use in the loop's thread only.
    """

    def __init__(self, db: int, settings: StoreSettings, *, cluster: bool) -> None:
        # Of the channels of keyspace events, which contain the database's number.
        self._prefix = f"__keyspace@{db}__:".encode()
        self._settings = settings
        self.keys: Callable[[str], SetKeys] = lru_cache(CACHE_SIZE)(
            partial(SetKeys, settings, client_id=settings.client_id, cluster=cluster)
        )
        # Weak: a pool that its user has dropped needs no wake-ups.
        self._members: WeakValueDictionary[bytes, RedisMembers]  # by pool
        self._members = WeakValueDictionary()
        self._listening: dict[bytes, list[RedisMembers]] = {}  # by channel
        self._numbers = count()
        self._has_events = False
        self.endpoint: Endpoint
        self.replicas: ReplicaAcks | None = None

    def use(
        self, endpoint: Endpoint, events: frozenset[str], replicas: ReplicaAcks | None
    ) -> None:
        """Send all later commands over ``endpoint``.

        ``events``: the letters of the server's ``notify-keyspace-events``. ``replicas``
        confirms grants; None if ``min_replicas`` is 0.
        """
        self.endpoint, self._has_events = endpoint, bool(events & _CHANGE_EVENTS)
        self.replicas = replicas

    def members(self, name: str, wake: WakeSet) -> RedisMembers:
        """Return the mutexes of the set ``name``, for use by one group of tasks.

        ``wake(mutex)`` wakes its tasks that wait for a mutex ("": any), or all (None).
        """
        pool = f"{self._settings.client_id}.{next(self._numbers)}".encode()
        members = self._members[pool] = RedisMembers(self, self.keys(name), pool, wake)
        return members

    def step(self, member: SetMember, command: Command) -> Pending[Reply]:
        """Release or renew one mutex; wake the tasks of this client that are next."""
        keys = self.keys(member.type)
        script, args = encode_member(keys, command)
        must_go = isinstance(command, Release)
        decode = self.waking(partial(decode_member, command))
        return self.endpoint.run(script, args, decode, must_go=must_go)

    def message(self, channel: bytes, payload: bytes) -> bool:
        """Wake the tasks that a message names; return False if it concerns no set."""
        listening = self._listening.get(channel)
        if listening is not None:
            for members in listening:
                members.wake(None)
            return True
        return self.wake_entry(payload)

    def wake_all(self) -> None:
        for members in list(self._members.values()):
            members.wake(None)

    def listen(self, members: RedisMembers) -> None:
        """Wake all tasks of ``members`` when the set changes, if events are enabled."""
        if self._has_events:
            channel = self._prefix + members.keys.key
            self._listening.setdefault(channel, []).append(members)
            self.endpoint.subscribe(channel)

    def unlisten(self, members: RedisMembers) -> None:
        channel = self._prefix + members.keys.key
        listening = self._listening.get(channel, [])
        if members in listening:
            listening.remove(members)
            if not listening:
                del self._listening[channel]
                self.endpoint.unsubscribe(channel)

    def waking(self, decode: Callable[[Raw], T]) -> Callable[[Raw], T]:
        """Wrap ``decode``, to wake the tasks of this client that an answer names."""

        @reading_answer()
        def decoded(answer: Raw) -> T:
            value = decode(answer)
            for entry in answer[0]:
                self.wake_entry(entry)
            return value

        return decoded

    def wake_entry(self, entry: bytes) -> bool:
        """Wake the tasks of a queue entry; return False if another client has them."""
        members = self._members.get(pool_of(entry))
        if members is not None:
            members.wake(target_of(entry))
        return members is not None


class RedisMembers:
    """Takes mutexes of one mutex set (interchangeable mutexes) for some tasks."""

    def __init__(
        self, sets: MutexSets, keys: SetKeys, pool: bytes, wake: WakeSet
    ) -> None:
        self._sets = sets
        self.keys: SetKeys = keys
        self._pool = pool
        self.wake: WakeSet = wake

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        script, args = encode_ask(self.keys, self._pool, asks, micros(entry_ttl))
        decode = partial(self._decode, asks)
        if self._sets.replicas is None:
            return self._sets.endpoint.run(script, args, decode)
        call = Call(decode, args, script)
        return self._sets.replicas.confirm(call, partial(self._unacked, asks))

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        entries = [self._pool + b"," + name_to_bytes(target) for target in places]
        request = encode_withdraw(self.keys, entries, tickets, lease)
        return self._run(*request, _decode_nothing, must_go=True)

    def create(self, name: str, lease: int) -> Pending[bool]:
        args = (*self.keys.args, "c", lease, name_to_bytes(name))
        return self._run(SET_ENTER, args, _decode_flag)

    def remove(self, name: str) -> Pending[bool]:
        args = (*self.keys.args, "d", name_to_bytes(name))
        return self._run(SET_LEAVE, args, _decode_flag)

    def end(self, ticket: str) -> Pending[Reply]:
        request = encode_release(self.keys, ticket, remove=True)
        return self._run(*request, decode_release, must_go=True)

    async def names(self) -> AsyncIterator[str]:
        seen: set[bytes] = set()
        cursor: Any = 0
        while True:
            cursor, flat = await self._sets.endpoint.call_for_key(
                "ZSCAN", self.keys.key, cursor, "COUNT", SCAN_COUNT
            )
            # ZSCAN may return a member several times.
            for name in flat[::2]:
                if name not in seen:
                    seen.add(name)
                    yield name_from_bytes(name)
            if int(cursor) == 0:
                return

    def watch(self) -> None:
        self._sets.listen(self)

    def unwatch(self) -> None:
        self._sets.unlisten(self)

    def _run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Raw], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        decode = self._sets.waking(decode)
        return self._sets.endpoint.run(script, args, decode, must_go=must_go)

    @reading_answer()
    def _decode(self, asks: Sequence[TakeRequest], answer: Raw) -> TakeReplies:
        mine: list[str] = []
        replies = decode_ask(asks, answer)
        # The caller is about to look at the answer: its own entries need no wake-up.
        for entry in answer[0]:
            if pool_of(entry) == self._pool:
                mine.append(target_of(entry))
            else:
                self._sets.wake_entry(entry)
        return TakeReplies(replies, tuple(mine))

    def _unacked(
        self, asks: Sequence[TakeRequest], replies: TakeReplies
    ) -> UnackedGrant[TakeReplies] | None:
        both = zip(asks, replies.answers, strict=True)
        taken = [ask for ask, answer in both if isinstance(answer, Taken)]
        if not taken:
            return None

        def instead(error: BaseException) -> TakeReplies:
            tickets = [ask.ticket for ask in taken]
            self.withdraw((), tickets, taken[0].lease).log_failure()
            # Each gets a copy: a raised exception collects its raiser's traceback.
            answers = (
                copy(error) if isinstance(a, Taken) else a for a in replies.answers
            )
            return TakeReplies(tuple(answers), replies.rung)

        return UnackedGrant(instead)
