"""Mutex sets and occupied objects in Redis: Lua scripts, decoded answers, wake-ups.

``lua/mutex_set.lua`` and ``lua/occupancy.lua`` document arguments and answers. The
functions ``decode_…`` raise ``BackendError`` if an answer cannot be read.

A pool is a group of tasks of one client that use a mutex set together; each queue entry
is "pool,target". Our scripts send a message to the client that is next. Other programs
publish nothing: if the server sends keyspace notifications of sorted sets, a client
subscribes to the events of a set while it waits for a member. Notifications are never
switched on for that.

Contenders for an object: a set of pending ones, a string for the using one, under names
of the user's (``pending:book:42``, ``using:book:42``). Our own keys lie in the slot of
the first: ``{pending:book:42}.since`` and ``.seen``. A using record ends by the TTL of
its key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

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
from aiorwlock_remote.backends.redis.scripts import OCCUPY, SET_ENTER, SET_LEAVE, VACATE
from aiorwlock_remote.core.commands import (
    Command,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Withdrawn,
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
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges, contender_id
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.errors import LossReason, Unsupported
from aiorwlock_remote.ports import StoreSettings

T = TypeVar("T")

WakeSet = Callable[[str | None], object]
"""Wakes the tasks that wait for this member of a set; None: all tasks of the set."""

CACHE_SIZE = 1024
"""Maximum number of sets, and of objects, whose keys are cached."""
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
        are to be woken; other clients get a message. Raise ``ConfigurationError`` if
        the keys would have different slots of a cluster.
        """
        self.key: bytes = settings.prefix.encode() + name_to_bytes(name)
        wake = WAKE_PREFIX.encode()
        parts = (
            (b".state", b".queue", b"." + wake) if cluster else (b".state", b".queue")
        )
        keys = (self.key, *(key_in_same_slot(self.key, part) for part in parts))
        if cluster:
            check_same_slot(*keys)
        memory = micros(settings.fence_memory)
        channels = keys[-1] if cluster else wake_channel("")
        self.args: tuple[Arg, ...] = (len(keys), *keys, memory, channels, client_id)


def _own_keys(key: bytes, *parts: str, cluster: bool) -> list[bytes]:
    # In a cluster, the prefix of the slot's wake-up channels is a key, too (keys.py).
    parts = (*parts, WAKE_PREFIX) if cluster else parts
    return [key_in_same_slot(key, f".{part}".encode()) for part in parts]


def name_to_bytes(name: str) -> bytes:
    """Encode a name as UTF-8; surrogates become the bytes they were decoded from."""
    return name.encode("utf-8", "surrogateescape")


def name_from_bytes(name: bytes) -> str:
    """Decode a name as UTF-8; undecodable bytes are kept as surrogates."""
    return name.decode("utf-8", "surrogateescape")


def encode_member(keys: SetKeys, command: Command) -> Request:
    """Return the script, and its arguments, that releases or renews a held mutex.

    Raise ``Unsupported`` if ``command`` is neither a ``Release`` nor a ``Renew``.
    """
    if isinstance(command, Release):
        return encode_release(keys, command.ticket, remove=False)
    if isinstance(command, Renew):
        tickets = (ticket for ticket, _ in command.tickets)
        return SET_LEAVE, (*keys.args, "n", *tickets)
    raise Unsupported(what=f"a mutex of a set knows no {type(command).__name__}")


@reading_answer()
def decode_member(command: Command, answer: Raw) -> Reply:
    """Return the reply to ``command`` from the answer of ``encode_member``'s script."""
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
    """Return for each request of ``encode_ask`` what it has taken, or ``Busy``."""
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
    """Return ``Released``: whether the ticket held its mutex, or why it did not."""
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


def _decode_withdrawn(answer: Raw) -> Withdrawn:
    if results_of(answer):
        raise ValueError("an answer where none is due")
    return Withdrawn()


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
        request = encode_member(self.keys(member.type), command)
        must_go = isinstance(command, Release)
        return self.run(request, partial(decode_member, command), must_go=must_go)

    def run(
        self, request: Request, decode: Callable[[Raw], T], *, must_go: bool = False
    ) -> Pending[T]:
        """Run a script; wake the tasks of this client that the answer names."""
        return self.endpoint.run(*request, self.waking(decode), must_go=must_go)

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
        pool, _, target = entry.partition(b",")
        members = self._members.get(pool)
        if members is not None:
            members.wake(name_from_bytes(target))
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
    ) -> Pending[Reply]:
        entries = [self._pool + b"," + name_to_bytes(target) for target in places]
        request = encode_withdraw(self.keys, entries, tickets, lease)
        return self._sets.run(request, _decode_withdrawn, must_go=True)

    def create(self, name: str, lease: int) -> Pending[bool]:
        args = (*self.keys.args, "c", lease, name_to_bytes(name))
        return self._sets.run((SET_ENTER, args), _decode_flag)

    def remove(self, name: str) -> Pending[bool]:
        args = (*self.keys.args, "d", name_to_bytes(name))
        return self._sets.run((SET_LEAVE, args), _decode_flag)

    def end(self, ticket: str) -> Pending[Reply]:
        request = encode_release(self.keys, ticket, remove=True)
        return self._sets.run(request, decode_release, must_go=True)

    async def names(self) -> AsyncGenerator[str, None]:
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

    @reading_answer()
    def _decode(self, asks: Sequence[TakeRequest], answer: Raw) -> TakeReplies:
        mine: list[str] = []
        replies = decode_ask(asks, answer)
        # The caller is about to look at the answer: its own entries need no wake-up.
        for entry in answer[0]:
            pool, _, target = entry.partition(b",")
            if pool == self._pool:
                mine.append(name_from_bytes(target))
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
        self._keys = lru_cache(CACHE_SIZE)(
            partial(_occupancy_keys, names, cluster=cluster)
        )

    def sign(self, label: str) -> str:
        return contender_id(label, random_id())

    async def write(self, thing: str, who: str) -> None:
        await self._run(OCCUPY, thing, _done, "w", who)

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the pending records of ``thing``, except that of contender ``who``.

        A record of another program carries no time: its age counts from the first call
        that saw it, as long as the calls follow each other within three seconds.
        """
        return await self._run(OCCUPY, thing, _contenders, "p", who)

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


def _occupancy_keys(
    names: tuple[str, str], thing: str, *, cluster: bool
) -> tuple[bytes, ...]:
    pending, using = (name.replace("%s", thing).encode() for name in names)
    if cluster:
        check_same_slot(pending, using)
    return pending, using, *_own_keys(pending, "since", "seen", cluster=cluster)


@reading_answer()
def _done(answer: Raw) -> bool:
    return yes_no(answer)


@reading_answer()
def _contenders(answer: Raw) -> list[ContenderRecord]:
    return [_contender(*items_of(item)) for item in items_of(answer)]


def _contender(who: Raw, age: Raw, mark: Raw) -> ContenderRecord:
    name = name_from_bytes(bytes_of(who))
    return ContenderRecord(name, number_of(age) / MICROS, mark=int(bytes_of(mark)))


@reading_answer()
def _user(answer: Raw) -> list[ContenderRecord]:
    names = () if answer is None else (name_from_bytes(bytes_of(answer)),)
    return [ContenderRecord(name, 0.0) for name in names]


def _unacked(promoted: bool) -> UnackedGrant[bool] | None:  # noqa: FBT001 - an answer
    return UnackedGrant(lambda error: error) if promoted else None
