"""``RedisStore``, opened by URLs such as ``redis://`` and ``redis+cluster://``."""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Any, cast

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.codec import (
    decode,
    decode_step,
    encode,
    pushed_in,
)
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.protocol import Call, Request
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    KeeperChannel,
    RenewalChannel,
)
from aiorwlock_remote.backends.redis.connections import ConnectionFactory, Endpoint
from aiorwlock_remote.backends.redis.examine import allowed, examine, findings_at
from aiorwlock_remote.backends.redis.failover import FailoverListener
from aiorwlock_remote.backends.redis.keys import (
    Keys,
    keys_of,
    scan_server,
    wake_channel,
)
from aiorwlock_remote.backends.redis.log import log, log_debug, log_redis
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.backends.redis.prepared import PreparedAcquire, PreparedRelease
from aiorwlock_remote.backends.redis.recipes import (
    MutexSets,
    RedisMembers,
    RedisOccupancyStore,
    SetKeys,
    decode_member,
    encode_member,
)
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, may_grant, unacked
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mutex_set import SetMember
from aiorwlock_remote.core.names import KeyPair, Resource
from aiorwlock_remote.core.occupancy import ExpiryAges
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    EventLoop,
    Finding,
    Renewal,
    RenewerBase,
    Snapshot,
    StoreBase,
    StoreSettings,
    WakeCallback,
)

CACHE_SIZE = 4096
"""Maximum number of resources whose keys are cached."""
RENEWALS_PER_WRITE = 50
"""A server carries out what came in one write before it serves anybody else: five
hundred renewals kept a newcomer waiting for 70 ms (``nox -s bench -- growth``)."""
KEY_REMOVED_EVENTS = frozenset("gxA")
"""Letters of ``notify-keyspace-events`` for keys that were deleted or expired."""

PUSHING = PollPolicy(claim_window=0.3, pushes=True)
"""How waiters wait for a server that may grant them the lock by a message."""

_MUST_GO = Release, Withdraw

PublishedKeys = tuple[bytes, ...]
"""Those keys of one resource that other programs use, too."""


class RedisStore(StoreBase):
    """The store of one ``Locks`` on a server, a primary of Sentinels, or a cluster.

    One connection per server carries all commands except the lease keeper's renewals.
    """

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.PUSHES
        | Capability.REPLICAS
        | Capability.MUTEX_SETS
        | Capability.KEY_PAIRS
        | Capability.OCCUPANCY
    )
    poll_policy: PollPolicy = PUSHING

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        factory: ConnectionFactory | None = None,
    ) -> None:
        """Prepare the store; ``open`` connects it.

        ``wake(resource, 0.0, pushed)`` is called in the loop when a waiter may be
        granted now, or was (``pushed``).
        ``factory`` opens the connections; None: a default one for servers of URLs.
        """
        super().__init__(loop, wake, settings)
        self._options = options
        # A pushed grant is reported before any replica has it. In a cluster a slot may
        # move within its window to a node whose clock is ahead by more than the margin:
        # that node grants the lock again (model PushedGrant, push_moved_slot).
        if options.min_replicas or options.seeds:
            self.poll_policy = PollPolicy()
            self.capabilities &= ~Capability.PUSHES
        self._factory = factory or ConnectionFactory()
        if not self._factory.off_loop:
            self.capabilities &= ~Capability.OFF_LOOP_RENEWAL
        self._cluster = bool(options.seeds)
        self._keys_of = lru_cache(CACHE_SIZE)(
            partial(
                keys_of,
                settings.prefix,
                fence_memory=settings.fence_memory,
                cluster=self._cluster,
            )
        )
        # Both are made before the connection, whose messages they receive.
        self._wakeups = WakeupDispatcher(options.db, wake)
        self._sets = MutexSets(options.db, settings, cluster=self._cluster)
        sentinels = options.sentinels or options.client_sentinels
        self._finder: PrimaryFinder | None = None
        self._listener: FailoverListener | None = None
        if sentinels is not None:
            # A cluster needs no notice: its former primary redirects every call.
            self.capabilities |= Capability.FAILS_OVER
            self._finder = PrimaryFinder(sentinels, loop.clock)
            self._listener = FailoverListener(self._finder, options, loop)
        self._endpoint: Endpoint
        self._replicas: ReplicaAcks | None = None

    async def open(self) -> None:
        """Connect, and find out whether the server sends keyspace events.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """
        options, needed = self._options, self._options.min_replicas
        self._endpoint = await self._factory.open(
            *(options, self.event_loop, wake_channel(self.settings.client_id)),
            *(self._finder, self._message, self._wake_all),
        )
        if needed:
            self._replicas = ReplicaAcks(
                self._endpoint, needed, options.command_timeout / 4, options.where
            )
        try:
            events = await keyspace_events(self._endpoint.call)
            # A user who may not ask may still be able to subscribe.
            if events is None or events & KEY_REMOVED_EVENTS:
                self._wakeups.listen_on(self._endpoint)
            else:
                why = "no keyspace events: releases by other programs are polled for"
                log_debug("polling_started", reason=why)
            self._sets.use(self._endpoint, events or frozenset(), self._replicas)
        except BaseException:
            await self._endpoint.aclose()
            raise
        # Last: a store that could not be opened is not closed either.
        if self._listener is not None:
            self._listener.start()

    def on_failover(self, renew_all: Callable[[], object]) -> None:
        assert self._finder is not None, "only Sentinels tell of a failover"
        self._finder.on_switch(renew_all)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if isinstance(resource, SetMember):
            return self._sets.step(resource, command)
        keys = self._keys_of(resource)
        script, args = encode(keys, command, self.settings.client_id)
        decode = partial(self._decode, keys, command)
        must_go = type(command) in _MUST_GO
        if self._replicas is None or not may_grant(command):
            return self._endpoint.run(script, args, decode, must_go=must_go)
        call = Call(decode, args, script, must_go)
        undo = partial(self._withdraw, resource)
        return self._replicas.confirm(call, partial(unacked, undo))

    def prepared(
        self, resource: Resource, command: Command
    ) -> Callable[[], Pending[Reply]]:
        connection = self._single_connection(resource)
        if connection is None or self._replicas is not None:
            return super().prepared(resource, command)
        keys = self._keys_of(resource)
        script, args = encode(keys, command, self.settings.client_id)
        must_go = type(command) in _MUST_GO
        call = Call(partial(self._decode, keys, command), args, script, must_go)
        return partial(connection.send_packed, call, call.packed())

    def prepared_acquire(
        self, resource: Resource, acquire: Acquire
    ) -> Callable[[Claim], Pending[Reply]] | None:
        connection = self._single_connection(resource)
        if connection is None or self._replicas is not None:
            return None
        keys, client_id = self._keys_of(resource), self.settings.client_id
        read, step = partial(self._decode, keys), partial(self.step, resource)
        return PreparedAcquire(connection, keys, acquire, client_id, read, step)

    def prepared_release(
        self, resource: Resource
    ) -> Callable[[str], Pending[Reply]] | None:
        connection = self._single_connection(resource)
        if connection is None:
            return None
        keys, client_id = self._keys_of(resource), self.settings.client_id
        read, step = partial(self._decode, keys), partial(self.step, resource)
        return PreparedRelease(connection, keys, client_id, read, step)

    def watch(self, resource: Resource) -> None:
        self._wakeups.watch(resource, self._keys_of(resource).published)

    def unwatch(self, resource: Resource) -> None:
        self._wakeups.unwatch(self._keys_of(resource).published)

    async def look(self, resource: Resource) -> Snapshot:
        """Return the state of a resource; takes time in proportion to its readers."""
        return await self._look(resource)

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        seen: set[Resource] = set()
        prefix = self.settings.prefix
        for send in self._endpoint.servers().values():
            async with aclosing(scan_server(send, prefix, resource_type)) as pages:
                async for found in pages:
                    new = found - seen
                    seen |= new
                    for snapshot in await self._snapshots(new):
                        yield snapshot

    def members(self, name: str, ring: Callable[[str | None], object]) -> RedisMembers:
        return self._sets.members(name, ring)

    def check_pair(self, pair: KeyPair) -> None:
        # A server has all keys of any pair, a cluster's node if they share a {tag}.
        self._keys_of(pair)

    def occupations(
        self, pending: str, using: str, ages: ExpiryAges
    ) -> RedisOccupancyStore:
        prefix = self.settings.prefix
        return RedisOccupancyStore(
            self._endpoint,
            self._replicas,
            (prefix + pending, prefix + using),
            ages,
            cluster=self._cluster,
        )

    async def examine(self) -> AsyncGenerator[Finding, None]:
        if not self._factory.off_loop:
            meaning = "a loop that is blocked for a lease loses its locks"
            yield Finding("renewal", "on the event loop", meaning, "note")
        servers = self._endpoint.servers()
        for where, send in servers.items():
            found = examine(send, self.event_loop.clock)
            if len(servers) > 1:
                found = findings_at(where, found)
            async with aclosing(found):
                async for finding in found:
                    yield finding

    def connections(self) -> dict[str, str]:
        return self._endpoint.states()

    def renewer(self) -> RedisRenewer:
        channel = self._factory.renewal_channel(
            *(self._options, self.event_loop, self._endpoint, self._finder)
        )
        return RedisRenewer(channel, self.settings, self.event_loop.clock)

    async def aclose(self) -> None:
        """Wait for outstanding replies, one second at most, and close everything."""
        try:
            if self._listener is not None:
                await self._listener.aclose()
        finally:
            await self._endpoint.aclose()

    def _message(self, channel: bytes, payload: bytes) -> None:
        if not self._sets.message(channel, payload):
            self._wakeups.message(channel, payload)

    def _wake_all(self) -> None:
        self._wakeups.wake_all()
        self._sets.wake_all()

    def _withdraw(self, resource: Resource, tickets: tuple[str, ...]) -> None:
        if not tickets:
            return
        # The mode names the queue entry, which `keep` leaves: either mode will do.
        command = Withdraw(self.settings.client_id, Mode.READ, tickets, keep=True)
        self.step(resource, command).log_failure()

    def _single_connection(self, resource: Resource) -> RedisConnection | None:
        # A cluster chooses the node when a call is sent.
        endpoint = self._endpoint
        if isinstance(endpoint, RedisConnection):
            return None if isinstance(resource, SetMember) else endpoint
        return None

    def _decode(self, keys: Keys, command: Command, raw: object) -> Reply:
        reply, woken, pushed = decode_step(command, raw)
        if woken:  # a script sends no message to the client that called it
            self.wake(keys.resource, 0.0, pushed)
        for answer in reply.then if type(reply) is Released else (reply,):
            # A foreign holder publishes no message when it leaves, and only the client
            # that is next has to know (test_a_waiter_for_a_foreign_holder).
            if type(answer) is Waiting and answer.foreign and answer.ahead == 0:
                self._wakeups.foreign_holder(keys.published)
        return reply

    def _is_lockable(self, resource: Resource) -> bool:
        try:
            self._keys_of(resource)
        except ConfigurationError:
            return False
        return True

    async def _snapshots(self, found: Iterable[Resource]) -> list[Snapshot]:
        lockable = [r for r in found if self._is_lockable(r)]
        # All are sent before the first is awaited.
        looks = [self._look(r) for r in lockable]
        snapshots: list[Snapshot] = []
        for resource, looking in zip(lockable, looks, strict=True):
            try:
                snapshots.append(await looking)
            except (BadRecord, Unsupported) as exc:
                label, error = resource.label, str(exc)
                log_redis("bad_record", resource=label, error=error)
        return snapshots

    def _look(self, resource: Resource) -> Pending[Snapshot]:
        keys = self._keys_of(resource)
        decode = partial(decode_look, resource)
        return self._endpoint.run(keys.look, keys.args, decode)


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> RedisStore:
    """Open the store of a URL: ``redis``, ``rediss``, ``unix``, +sentinel or +cluster.

    ``valkey`` and ``valkeys`` are other names of ``redis`` and ``rediss``.

    ``wake(resource, 0.0)`` is called in ``loop`` when a waiter for the resource may be
    granted now.

    Raises:
        ConfigurationError: A part or an option of the URL is invalid.
        BackendError: The server cannot be reached, or cannot be used for locks.
    """
    options = options_of(
        address,
        connect_timeout=settings.connect_timeout,
        min_replicas=settings.min_replicas,
    )
    store = RedisStore(options, loop, wake, settings)
    await store.open()
    return store


class WakeupDispatcher:
    """Wakes the waiters of the resource that a received message or event is about.

    For use in the loop's thread only.
    """

    def __init__(self, db: int, wake: WakeCallback) -> None:
        # Of the channels of keyspace events, which contain the database's number.
        self._prefix = f"__keyspace@{db}__:".encode()
        self._wake = wake
        self._endpoint: Endpoint | None = None
        self._watched: dict[bytes, Resource] = {}  # by their published keys
        self._channels: dict[bytes, bytes] = {}  # of subscribed keys
        self._foreign: PublishedKeys | None = None

    def listen_on(self, endpoint: Endpoint) -> None:
        """Use ``endpoint`` to subscribe to keyspace events, each when it is needed."""
        self._endpoint = endpoint

    def message(self, channel: bytes, payload: bytes) -> None:
        """Wake the waiters of the watched resource that a message or event is about."""
        is_event = channel.startswith(self._prefix)
        key = channel[len(self._prefix) :] if is_event else payload
        resource, pushed = self._watched.get(key), None
        if resource is None and not is_event:
            # A pushed grant follows the key, after a space.
            key, _, text = payload.rpartition(b" ")
            pushed = pushed_in(text)
            resource = None if pushed is None else self._watched.get(key)
        if resource is not None:
            if log.isEnabledFor(logging.DEBUG):
                kind = "keyspace_event" if is_event else "message"
                log_debug("wakeup_received", resource=resource.label, kind=kind)
            self._wake(resource, 0.0, pushed)

    def watch(self, resource: Resource, keys: PublishedKeys) -> None:
        """Wake waiters of ``resource`` at events about ``keys``, until ``unwatch``."""
        for key in keys:
            self._watched[key] = resource
        # The reply with the foreign holder came before the waiter was registered.
        if self._foreign == keys:
            self._subscribe(keys)

    def unwatch(self, keys: PublishedKeys) -> None:
        """Stop waking waiters at events about ``keys``, and unsubscribe from these."""
        for key in keys:
            self._watched.pop(key, None)
            channel = self._channels.pop(key, None)
            if channel is not None and self._endpoint is not None:
                self._endpoint.unsubscribe(channel)

    def foreign_holder(self, keys: PublishedKeys) -> None:
        """Subscribe to events of ``keys``, which another program holds.

        For a resource whose first queue entry is this client's.
        """
        # Our scripts publish the key to the channel of the client that is next. Another
        # program publishes nothing, so its release is seen at the next poll, unless the
        # server has keyspace notifications. They are never switched on for that: they
        # are the server's setting.
        self._foreign = keys
        if keys[0] in self._watched:
            self._subscribe(keys)

    def wake_all(self) -> None:
        for resource in dict.fromkeys(self._watched.values()):
            self._wake(resource, 0.0)

    def _subscribe(self, keys: PublishedKeys) -> None:
        self._foreign = None
        if self._endpoint is None or keys[0] in self._channels:
            return
        resource = self._watched[keys[0]]
        if log.isEnabledFor(logging.DEBUG):
            log_debug("listener_subscribed", resource=resource.label)
        for key in keys:
            self._channels[key] = channel = self._prefix + key
            self._endpoint.subscribe(channel)
        # The foreign holder may have left before the subscription.
        self._wake(resource, 0.0)


async def keyspace_events(send: Callable[..., Awaitable[Any]]) -> frozenset[str] | None:
    """Return the letters of ``notify-keyspace-events``; None if the user may not ask.

    Empty if ``K`` is not among them: then the channels of keys get no events.
    """
    found = await allowed(send("CONFIG", "GET", "notify-keyspace-events"))
    if found is None:
        return None
    flags = frozenset("".join(value.decode() for value in dict(found).values()))
    return flags if "K" in flags else frozenset()


class RedisRenewer(RenewerBase):
    """Renews a batch of grants over ``channel``, one script per grant."""

    def __init__(
        self, channel: RenewalChannel, settings: StoreSettings, clock: Clock
    ) -> None:
        self._channel = channel
        self._settings = settings
        self._clock = clock
        self._cluster = isinstance(channel, ClusterRenewalChannel)

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        until = self._clock.now() + timeout
        found: list[Grant | NotHeld | Exception] = []
        for first in range(0, len(batch), RENEWALS_PER_WRITE):
            some = batch[first : first + RENEWALS_PER_WRITE]
            try:
                found += self._renew(some, max(0.0, until - self._clock.now()))
            except Exception as exc:
                if not found:
                    raise
                # What was renewed before it counts (test_renewals_per_write.py).
                return [*found, *([exc] * (len(batch) - len(found)))]
        return found

    def _renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> list[Grant | NotHeld | Exception]:
        commands = [Renew(((item.ticket, item.lease),)) for item in batch]
        requests = [
            self._request(item.resource, command)
            for item, command in zip(batch, commands, strict=True)
        ]
        channel = self._channel

        def outcomes(answers: Sequence[Any]) -> list[Grant | NotHeld | Exception]:
            return [
                _outcome(item.resource, command, raw)
                for item, command, raw in zip(batch, commands, answers, strict=True)
            ]

        first = outcomes(channel.run_many(requests, timeout))
        if isinstance(channel, KeeperChannel):
            second = channel.run_at_successor(requests)
            if second is not None:
                return list(map(_in_doubt, first, outcomes(second)))
        return first

    def lane(self, resource: Resource) -> Hashable:
        if not isinstance(self._channel, ClusterRenewalChannel):
            return None
        _, args = self._request(resource, Renew(()))
        return self._channel.lane(cast("bytes", args[1]))

    def give_up(self) -> None:
        self._channel.give_up()

    def close(self) -> None:
        self._channel.close()

    def _request(self, resource: Resource, command: Renew) -> Request:
        settings = self._settings
        # Without a client id: this thread cannot wake tasks of the loop, so our own
        # client gets a message as all others do.
        if isinstance(resource, SetMember):
            keys = SetKeys(settings, resource.type, "", cluster=self._cluster)
            return encode_member(keys, command)
        return encode(
            keys_of(
                settings.prefix, resource, settings.fence_memory, cluster=self._cluster
            ),
            command,
        )


def _in_doubt(
    first: Grant | NotHeld | Exception, second: Grant | NotHeld | Exception
) -> Grant | NotHeld | Exception:
    """Return the outcome of a renewal by two servers, either of which may count."""
    if isinstance(first, Grant) and isinstance(second, NotHeld):
        # No loss yet: the other server may have been detached by a person.
        return BackendUnavailable(what="a replica was promoted that has no such grant")
    return second if isinstance(second, Exception) else first


def _outcome(
    resource: Resource, command: Renew, raw: object
) -> Grant | NotHeld | Exception:
    if isinstance(raw, Exception):
        return raw
    try:
        member = isinstance(resource, SetMember)
        reply = (decode_member if member else decode)(command, raw)
    except BackendError as exc:
        return exc
    assert isinstance(reply, Renewed)
    return reply.outcomes[0]
