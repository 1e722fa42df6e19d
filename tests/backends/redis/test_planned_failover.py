"""A primary that is replaced while it stays up and writable, as Sentinel plans it.

Two servers that know nothing of each other stand for a primary and the replica that was
promoted without the latest grants; what the Sentinels say of it, and when, is the
test's own. Real Sentinels: ``tests/faults/test_redis_failover.py``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from aiorwlock_remote import BackendUnavailable, Held, LockLost, Locks, connect
from aiorwlock_remote.backends.redis import RedisBackend, failover, promotion, sentinel
from aiorwlock_remote.backends.redis.failover import FailoverListener
from aiorwlock_remote.backends.redis.sentinel import Primary, PrimaryFinder
from aiorwlock_remote.locks.connect import Connecting
from tests.backends.redis.clients import sentinel_client
from tests.backends.redis.connections import eventually
from tests.loops import LOOPS
from tests.renewals import renewals, renewed
from tests.servers.fix_redis import StartRedis
from tests.servers.pair import Pair
from tests.servers.process import until
from tests.servers.redis import RedisServer
from tests.servers.scripted_sentinel import NAME, ScriptedSentinel

pytestmark = pytest.mark.anyio

SWITCH, PROMOTED = b"+switch-master", b"+promoted-slave"
NEVER = 3600.0
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", LOOPS[:1])
"""Where redis-py works."""


class FailoverSetup:
    """Two servers, three Sentinels, and who connects through them."""

    def __init__(self, old: RedisServer, new: RedisServer) -> None:
        self.old, self.new = old, new
        self.sentinels = [ScriptedSentinel(old.port) for _ in range(3)]

    def connect(self) -> Connecting:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return connect(f"redis+sentinel://{hosts}/{NAME}/0")

    @asynccontextmanager
    async def connect_by_client(self) -> AsyncIterator[Locks]:
        ports = [each.port for each in self.sentinels]
        async with (
            sentinel_client(ports, NAME) as client,
            connect(RedisBackend(client), connect_timeout=2) as locks,
        ):
            yield locks

    def fail_over(self, epoch: int = 2) -> None:
        """All Sentinels know; the old primary does not."""
        for each in self.sentinels:
            each.names(self.new.port, epoch)

    def tell(self, channel: bytes = SWITCH, name: str = NAME) -> int:
        """What a Sentinel publishes then; to how many."""
        old, new = self.old.port, self.new.port
        text = f"{name} 127.0.0.1 {old} 127.0.0.1 {new}"
        if channel == PROMOTED:
            text = f"slave 127.0.0.1:{new} 127.0.0.1 {new} @ {name} 127.0.0.1 {old}"
        return sum(each.publish(channel, text) for each in self.sentinels)

    def close(self) -> None:
        for each in self.sentinels:
            each.close()


@pytest.fixture
def setup(start_redis: StartRedis) -> Iterator[FailoverSetup]:
    setup = FailoverSetup(start_redis(), start_redis())
    yield setup
    setup.close()


@pytest.fixture
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a message, or a renewal, tells of a failover."""
    monkeypatch.setattr(failover, "POLL_INTERVAL", NEVER)


async def lost(held: Held) -> None:
    """The loss is known at once, long before a third of the lease."""
    await eventually(lambda: not held.valid, "the loss is known")
    with pytest.raises(LockLost):
        held.check()


@pytest.mark.usefixtures("nobody_polls")
@pytest.mark.parametrize("channel", [SWITCH, PROMOTED])
async def test_a_message_is_enough(setup: FailoverSetup, channel: bytes) -> None:
    """Holders learn of their loss; the next request goes to the new primary."""
    async with setup.connect() as locks, setup.connect() as others:
        held = await locks.mutex("order", 1).acquire(lease=600)
        for_ever = await locks.mutex("order", 2).acquire(lease=None)
        read = await locks.rwlock("order", 3).reader.acquire(lease=600)
        await listened(locks)
        setup.fail_over()
        assert setup.tell(channel)
        for gone in (held, for_ever, read):
            await lost(gone)
        await moved(others)
        await moved(locks)
        async with others.mutex("order", 1).acquire(timeout=5):
            assert setup.new.ask("EXISTS", "mutex_locks/order,1") == 1
            assert await locks.mutex("order", 1).try_acquire() is None


async def test_a_message_that_is_lost_costs_little(
    setup: FailoverSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Sentinel is asked over the subscription, too, once a second."""
    monkeypatch.setattr(failover, "POLL_INTERVAL", 0.05)
    async with setup.connect() as locks:
        held = await locks.mutex("order", 1).acquire(lease=600)
        await listened(locks)
        setup.fail_over()
        await lost(held)


@pytest.mark.usefixtures("nobody_polls", "renewed_often")
async def test_a_renewal_asks_where_nobody_can_subscribe(
    setup: FailoverSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper asks before a batch, by itself: the user may not subscribe, say."""
    monkeypatch.setattr(sentinel, "CONFIRMATION_SECONDS", 0.05)
    for each in setup.sentinels:
        each.deaf = True
    async with setup.connect() as locks:
        held = await locks.mutex("order", 1).acquire(lease=30)
        await renewed(held)
        setup.fail_over()
        await lost(held)


@pytest.mark.usefixtures("nobody_polls")
@pytest.mark.parametrize("epoch", [None, 0], ids=["forged", "of an older failover"])
async def test_a_message_is_only_a_hint(
    setup: FailoverSetup, monkeypatch: pytest.MonkeyPatch, epoch: int | None
) -> None:
    """What the Sentinels themselves say counts; others' primaries are not ours."""
    monkeypatch.setattr(failover, "ASK_DELAYS", (0.0,))
    hear, asking = FailoverListener.message_received, list[bool]()

    def heard(listener: FailoverListener, channel: bytes, payload: bytes) -> None:
        hear(listener, channel, payload)
        asking.append(listener._asking._running)

    find, found = PrimaryFinder.find, list[Primary]()

    def asked(finder: PrimaryFinder, timeout: float) -> Primary:
        found.append(find(finder, timeout))
        return found[-1]

    monkeypatch.setattr(FailoverListener, "message_received", heard)
    monkeypatch.setattr(PrimaryFinder, "find", asked)
    async with setup.connect() as locks:
        async with locks.mutex("order", 1).acquire(lease=600) as held:
            await listened(locks)
            finder = finder_of(locks)
            await eventually(lambda: len(found) == 2, "asked once it is subscribed")
            if epoch is not None:
                setup.sentinels[0].names(setup.new.port, epoch)
            assert setup.tell(name="another")
            await eventually(lambda: asking == [False], "heard, and nobody asked")
            assert setup.tell()
            await eventually(lambda: len(found) == 3, "asked once")
            assert asking == [False, True]
            assert await locks.mutex("order", 1).locked()
            assert finder.switches == 0
            held.check()
        assert setup.old.ask("EXISTS", "mutex_locks/order,1") == 0


@pytest.mark.usefixtures("nobody_polls")
async def test_another_sentinel_is_listened_to_when_one_is_gone(
    setup: FailoverSetup,
) -> None:
    async with setup.connect() as locks:
        held = await locks.mutex("order", 1).acquire(lease=600)
        await listened(locks)
        (first,) = [each for each in setup.sentinels if each.subscribed.is_set()]
        first.close()
        others = [each for each in setup.sentinels if each is not first]
        await eventually(
            lambda: any(each.subscribed.is_set() for each in others), "another one"
        )
        await listened(locks)
        setup.fail_over()
        assert setup.tell()
        await lost(held)


@pytest.mark.usefixtures("renewed_often")
async def test_without_any_sentinel_the_present_primary_goes_on(
    setup: FailoverSetup,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And it is said, once."""
    monkeypatch.setattr(sentinel, "CONFIRMATION_SECONDS", 0.05)
    async with setup.connect() as locks:
        held = await locks.mutex("order", 1).acquire(lease=30)
        await renewed(held)
        with caplog.at_level(logging.WARNING):
            setup.close()
            await renewed(held, 4)
        assert await held.release()
    logged = [text for text in caplog.messages if text.startswith("sentinels_away")]
    assert len(logged) == 1


@pytest.fixture
def promoting(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailoverSetup]:
    """A primary and its replica; no Sentinel knows what becomes of them."""
    monkeypatch.setattr(sentinel, "CONFIRMATION_SECONDS", NEVER)
    monkeypatch.setattr(promotion, "SENTINELS_DECIDE", NEVER)
    setup = FailoverSetup(pair.primary, pair.replica)
    yield setup
    setup.close()


BOTH_WAYS = pytest.mark.parametrize(
    "way", [FailoverSetup.connect, FailoverSetup.connect_by_client]
)


@ON_ASYNCIO
@BOTH_WAYS
@pytest.mark.usefixtures("nobody_polls", "renewed_often")
async def test_a_promoted_replica_renews_before_any_sentinel_knows(
    promoting: FailoverSetup,
    way: Callable[[FailoverSetup], AbstractAsyncContextManager[Locks]],
) -> None:
    """And the Sentinels are asked from then on, until they say it, too."""
    old, new = promoting.old, promoting.new
    async with way(promoting) as locks:
        held = await locks.mutex("order", 1).acquire(lease=30)
        await listened(locks)
        until(lambda: new.ask("EXISTS", "mutex_locks/order,1"), "replicated")
        new.ask("REPLICAOF", "NO", "ONE")
        for server in (old, new, old, new):
            known = ends(server)
            await eventually(lambda: ends(server) > known, "renewed")  # noqa: B023
        held.check()
        finder = finder_of(locks)
        assert finder.switches == 0
        promoting.fail_over()
        await eventually(lambda: finder.switches == 1, "asked")
        await renewed(held)


@pytest.mark.only_on("trio", "the keeper has threads of its own")
@pytest.mark.parametrize("promoted", [True, False], ids=["promoted", "detached"])
@pytest.mark.usefixtures("nobody_polls", "renewed_often")
async def test_a_grant_that_a_promoted_replica_does_not_have(
    promoting: FailoverSetup, monkeypatch: pytest.MonkeyPatch, *, promoted: bool
) -> None:
    """It is neither renewed nor lost until it is known which server counts."""
    async with promoting.connect() as locks:
        await listened(locks)
        promoting.new.ask("REPLICAOF", "NO", "ONE")
        held = await locks.mutex("order", 1).acquire(lease=30)
        again = renewals(held)
        again()
        await eventually(lambda: locks.statistics().renewals_failed > 2, "in doubt")
        assert not again()
        if promoted:
            promoting.fail_over()
            await lost(held)
        else:  # by a person: the Sentinels go on to name the old one
            monkeypatch.setattr(promotion, "SENTINELS_DECIDE", 0)
            await renewed(held)


@ON_ASYNCIO
@pytest.mark.usefixtures("nobody_polls")
async def test_with_a_client_of_redis_py(setup: FailoverSetup) -> None:
    """Its Sentinels are listened to; one that is behind sends nobody back.

    The client alone would believe the first Sentinel that answers.
    """
    async with setup.connect_by_client() as locks:
        held = await locks.mutex("order", 1).acquire(lease=600)
        await listened(locks)
        for each in setup.sentinels[1:]:
            each.names(setup.new.port, 2)
        assert setup.tell()
        await eventually(lambda: finder_of(locks).switches == 1, "noticed")
        await lost(held)
        await moved(locks)
        async with locks.mutex("order", 1).acquire(timeout=5):
            assert setup.new.ask("EXISTS", "mutex_locks/order,1") == 1


@ON_ASYNCIO
@pytest.mark.usefixtures("nobody_polls")
async def test_a_client_that_comes_just_after_a_failover(setup: FailoverSetup) -> None:
    """It is not served by the old primary, to which its own code would lead it.

    The first Sentinel has not heard of the failover, and the others list the old one.
    """
    for each in setup.sentinels[1:]:
        each.names(setup.new.port, 2)
        each.listed = setup.old.port
    async with setup.connect_by_client() as locks, locks.mutex("order", 1):
        assert setup.new.ask("EXISTS", "mutex_locks/order,1") == 1


@ON_ASYNCIO
@pytest.mark.usefixtures("nobody_polls")
async def test_a_client_whose_sentinels_did_not_answer_us_in_time(
    setup: FailoverSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is connected to whom it found; the first answer is a switch, if another."""
    find = PrimaryFinder.find

    def silent(*_: object) -> Primary:
        raise BackendUnavailable(what="no Sentinel tells")

    monkeypatch.setattr(PrimaryFinder, "find", silent)
    async with setup.connect_by_client() as locks:
        held = await locks.mutex("order", 1).acquire(lease=600)
        await listened(locks)
        monkeypatch.setattr(PrimaryFinder, "find", find)
        setup.fail_over()
        assert setup.tell()
        await lost(held)
        await moved(locks)


async def listened(locks: Locks) -> None:
    """It is subscribed, and has asked whether it missed something before that."""
    store: Any = locks._session.client.store
    listener: FailoverListener = store._listener
    await eventually(
        lambda: (
            listener._connection._protocol is not None and not listener._asking._running
        ),
        "subscribed",
    )


def ends(server: RedisServer) -> int:
    """When the grant ends there."""
    expires: int = server.ask("PEXPIRETIME", "mutex_locks/order,1")
    return expires


async def moved(locks: Locks) -> None:
    """It is connected to the new primary."""
    store: Any = locks._session.client.store

    def is_there() -> bool:
        protocol = store._endpoint._protocol
        current = protocol is not None and bool(protocol._is_current())
        return finder_of(locks).switches == 1 and current

    await eventually(is_there, "connected to the new primary")


def finder_of(locks: Locks) -> PrimaryFinder:
    store: Any = locks._session.client.store
    finder: PrimaryFinder = store._finder
    return finder
