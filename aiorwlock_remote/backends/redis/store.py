"""``redis://``, ``redis+cluster://``, … — locks on Redis or Valkey."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import lru_cache, partial

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.commands import (
    decode_look,
    decode_step,
    encode,
    encode_look,
)
from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.connections import (
    ConnectionFactory,
    Endpoint,
    UrlConnectionFactory,
)
from aiorwlock_remote.backends.redis.examine import examine, findings_at
from aiorwlock_remote.backends.redis.failover import FailoverListener, PrimaryChannel
from aiorwlock_remote.backends.redis.keys import Keys, channel, keys_of, scan_server
from aiorwlock_remote.backends.redis.mutex_sets import MutexSets, RedisMembers
from aiorwlock_remote.backends.redis.occupancy import RedisOccupancyStore
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.backends.redis.renewer import RedisRenewer
from aiorwlock_remote.backends.redis.replica_acks import ReplicaAcks, may_grant
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.backends.redis.wakeups import (
    KEY_REMOVED_EVENTS,
    WakeupDispatcher,
    keyspace_events,
)
from aiorwlock_remote.core.commands import (
    Command,
    Release,
    Released,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import is_foreign_holder
from aiorwlock_remote.core.mutex_set import SetMember
from aiorwlock_remote.core.names import KeyPair, Resource
from aiorwlock_remote.core.occupancy import ExpiryAges
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BadRecord, ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")

CACHE_SIZE = 4096


class RedisStore:
    """One connection for everything but the keeper's renewals."""

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    pace: PollPolicy = PollPolicy()

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        lines: ConnectionFactory | None = None,
    ) -> None:
        """Not connected yet; see ``open``. ``lines``: if not those of a URL."""
        self._options = options
        self._lines: ConnectionFactory = lines or UrlConnectionFactory()
        if not self._lines.off_loop:
            self.capabilities &= ~Capability.OFF_LOOP_RENEWAL
        self._host = host
        self._bell = bell
        self._settings = settings
        cluster = bool(options.seeds)
        self._keys_of = lru_cache(CACHE_SIZE)(
            partial(
                keys_of,
                settings.prefix,
                fence_memory=settings.fence_memory,
                cluster=cluster,
            )
        )
        self._waking = WakeupDispatcher(options.db, bell)
        self._sets = MutexSets(options.db, settings, cluster=cluster)
        sentinels = options.sentinels or options.client_sentinels
        self._finder: PrimaryFinder | None = None
        self._listener: FailoverListener | None = None
        if sentinels is not None:
            self._finder = PrimaryFinder(sentinels, host.clock)
            self._listener = FailoverListener(self._finder, options, host)
        self._link: Endpoint
        self._replicas: ReplicaAcks | None = None

    @property
    def min_replicas(self) -> int:
        """As the URL or ``connect`` say."""
        return self._options.min_replicas

    async def open(self) -> None:
        """Connect, and see whether the server tells of changed keys.

        Raises:
            BackendError: it does not answer, or is not fit for us.
        """
        options, needed = self._options, self._options.min_replicas
        settings = self._settings
        self._link = await self._lines.open(
            *(options, self._host, channel(settings.client_id)),
            self._finder,
            on_message=self._message,
            on_reconnect=self._ring_all,
        )
        if needed:
            self._replicas = ReplicaAcks(
                self._link, needed, options.command_timeout / 4, options.where
            )
        try:
            events = await keyspace_events(self._link.call)
            if (
                events is None or events & KEY_REMOVED_EVENTS
            ):  # who may not know may hope
                self._waking.listen_on(self._link)
            self._sets.use(self._link, events or frozenset(), self._replicas)
        except BaseException:
            await self._link.aclose()
            raise
        if self._listener is not None:
            self._listener.start()

    def on_failover(self, renew_all: Callable[[], object]) -> bool:
        """As ``FailsOver``: a cluster's former primary itself sends us on."""
        if self._finder is None:
            return False
        self._finder.on_switch(renew_all)
        return True

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """One script."""
        if isinstance(resource, SetMember):
            return self._sets.step(resource, command)
        keys = self._keys_of(resource)
        script, args = encode(keys, command, self._settings.client_id)
        decoded = partial(self._decode, keys, command)
        must_go = isinstance(command, Release | Withdraw)
        if self._replicas is None or not may_grant(command):
            return self._link.run(script, args, decoded, must_go=must_go)
        return self._replicas.ask(
            Call(decoded, args, script, must_go), partial(self._take_back, resource)
        )

    def watch(self, resource: Resource) -> None:
        """Ring when it may be free for us: our own scripts tell without being asked."""
        self._waking.watch(resource, self._keys_of(resource).seats)

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._waking.unwatch(self._keys_of(resource).seats)

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands. Takes as long as there are readers."""
        return await self._look(resource)

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All that is there, by SCAN; what is damaged, or not for us, is left out."""
        seen: set[Resource] = set()
        prefix = self._settings.prefix
        for ask in self._link.everywhere().values():
            async for found in scan_server(ask, prefix, resource_type):
                new = found - seen
                seen |= new
                for looking in [self._look(r) for r in new if self._lockable(r)]:
                    try:
                        yield await looking
                    except (BadRecord, Unsupported) as exc:  # the others are to be seen
                        log_event(log, "bad_record", error=str(exc))

    def members(self, name: str, ring: Callable[[str | None], object]) -> RedisMembers:
        """A mutex set, in a sorted set of that name."""
        return self._sets.members(name, ring)

    def check_pair(self, pair: KeyPair) -> None:
        """A server alone has all keys of any pair, a cluster if they have a tag."""
        self._keys_of(pair)

    def occupations(
        self, pending: str, using: str, ages: ExpiryAges
    ) -> RedisOccupancyStore:
        """Objects' contenders, under these names behind the prefix."""
        prefix = self._settings.prefix
        return RedisOccupancyStore(
            self._link,
            self._replicas,
            (prefix + pending, prefix + using),
            ages,
            cluster=bool(self._options.seeds),
        )

    async def examine(self) -> AsyncIterator[Finding]:
        """What the server's settings mean for locks."""
        if not self._lines.off_loop:
            meaning = "a loop that is blocked for a lease loses its locks"
            yield Finding("renewal", "on the event loop", meaning, "note")
        servers = self._link.everywhere()
        for where, ask in servers.items():
            found = examine(ask, self._host.clock)
            async for finding in (
                found if len(servers) == 1 else findings_at(where, found)
            ):
                yield finding

    def renewer(self) -> RedisRenewer:
        """Renews over a connection of its own, if the lines have one for it."""
        batches = self._lines.batches(
            *(self._options, self._host, self._link, self._finder)
        )
        if self._finder is not None:
            batches = PrimaryChannel(batches, self._finder, self._host.clock)
        return RedisRenewer(batches, self._settings)

    async def aclose(self) -> None:
        """Wait for what is under way, close the connections."""
        try:
            if self._listener is not None:
                await self._listener.aclose()
        finally:
            await self._link.aclose()

    def _message(self, channel: bytes, payload: bytes) -> None:
        if not self._sets.message(channel, payload):
            self._waking.message(channel, payload)

    def _ring_all(self) -> None:
        self._waking.wake_all()
        self._sets.wake_all()

    def _take_back(self, resource: Resource, tickets: tuple[str, ...]) -> None:
        if not tickets:
            return
        # The mode is that of a place, which stays: any will do.
        gone = Withdraw(self._settings.client_id, Mode.READ, tickets, keep=True)
        self.step(resource, gone).log_failure()

    def _decode(self, keys: Keys, command: Command, raw: object) -> Reply:
        reply, rung = decode_step(command, raw)
        if rung:  # a script does not publish to the one who called it
            self._bell(keys.resource, 0.0)
        if type(reply) is Waiting:
            self._stands(keys, reply)
        elif type(reply) is Released and reply.then:
            for answer in reply.then:
                if type(answer) is Waiting:
                    self._stands(keys, answer)
        return reply

    def _stands(self, keys: Keys, told: Waiting) -> None:
        if told.ahead == 0 and is_foreign_holder(told.holders):
            self._waking.foreign(keys.seats)

    def _lockable(self, resource: Resource) -> bool:
        """Else another program's pair of keys, which lie in two slots of a cluster."""
        try:
            self._keys_of(resource)
        except ConfigurationError:
            return False
        return True

    def _look(self, resource: Resource) -> Pending[Snapshot]:
        keys = self._keys_of(resource)
        script, args = encode_look(keys)
        return self._link.run(script, args, partial(decode_look, resource))


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> RedisStore:
    """Open ``redis://``, ``rediss://``, ``unix://``, or what Sentinel or a cluster has.

    Raises:
        ConfigurationError: a part or an option of the URL cannot be used.
        BackendError: the server does not answer, or is not fit for us.
    """
    options = options_of(
        address,
        connect_timeout=settings.connect_timeout,
        min_replicas=settings.min_replicas,
    )
    store = RedisStore(options, host, bell, settings)
    await store.open()
    return store
