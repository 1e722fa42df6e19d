"""``Lock`` with redis-py's signature, on a real server."""

from __future__ import annotations

import asyncio
import gc
import inspect
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import suppress
from inspect import isfunction
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import ModuleType
from typing import Any, NoReturn
from uuid import uuid4

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.asyncio.lock import Lock as TheirAsyncLock
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as TheirLock

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.compat.redis_py import Lock
from aiorwlock_remote.compat.redis_py.asyncio import Lock as AsyncLock
from aiorwlock_remote.compat.redis_py.tokens import Obtained
from aiorwlock_remote.sync import LockTimeout, connect
from aiorwlock_remote.sync.background import background
from tests.servers.fix_redis import StartRedis
from tests.servers.process import until
from tests.servers.redis import RedisServer

TOKEN = b"mine"


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"order-{uuid4().hex}"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Lock, TheirLock), (AsyncLock, TheirAsyncLock)],
    ids=["blocking", "asyncio"],
)
def test_the_signatures_are_those_of_redis_py(ours: type, theirs: type) -> None:
    # Functions only: once used, the class has scripts among its attributes as well.
    functions = [name for name, found in vars(theirs).items() if isfunction(found)]
    calls = {name for name in functions if not name.startswith("_")}
    calls.discard("register_scripts")  # ours are the store's
    assert len(calls) > 5
    for call in ("__init__", *calls):
        given, wanted = (
            [
                (parameter.name, parameter.default)
                for parameter in inspect.signature(
                    getattr(kind, call)
                ).parameters.values()
            ]
            for kind in (ours, theirs)
        )
        assert given == wanted, call


def test_our_locks_and_those_of_redis_py_exclude_each_other(
    client: redis.Redis, name: str
) -> None:
    ours, theirs = Lock(client, name, timeout=30), TheirLock(client, name, timeout=30)
    with ours:
        assert theirs.locked()
        assert not theirs.acquire(blocking=False)
        assert 20 < client.ttl(name) <= 30
    with theirs:
        assert ours.locked()
        assert not ours.acquire(blocking=False)
        with pytest.raises(LockNotOwnedError):
            ours.do_release(b"of nobody")
    assert ours.acquire(blocking=False)
    ours.release()


def test_a_grant_ends_by_its_timeout_for_both(client: redis.Redis, name: str) -> None:
    ours, theirs = Lock(client, name, timeout=0.2), TheirLock(client, name, timeout=0.2)
    assert ours.acquire()
    assert theirs.acquire(blocking_timeout=10)
    assert ours.acquire(blocking_timeout=10)
    assert ours.owned()
    assert not theirs.owned()


def test_a_mutex_of_the_same_record_is_the_same_lock(
    client: redis.Redis, redis_server: RedisServer, name: str
) -> None:
    lock = Lock(client, f"mutex_locks/order,{name}")
    with connect(redis_server.url) as locks:
        with lock, pytest.raises(LockTimeout):
            locks.mutex("order", name).acquire(timeout=0)
        with locks.mutex("order", name):
            assert not lock.acquire(blocking=False)


def waiting(lock: Lock) -> int:
    """Return how many calls of this process wait for locks of this server."""
    session = background().run(lock._lock._server.session)
    return len(list(session.acquirer.waiters()))


@pytest.mark.usefixtures("seldom_polls")
def test_waiters_are_notified_in_their_order(client: redis.Redis, name: str) -> None:
    entered: list[int] = []
    first, threads = Lock(client, name, timeout=30), list[threading.Thread]()
    assert first.acquire()

    def enter(number: int) -> None:
        with Lock(client, name, timeout=30):
            entered.append(number)

    for number in range(5):
        thread = threading.Thread(target=enter, args=(number,))
        thread.start()
        threads.append(thread)
        until(lambda: waiting(first) == len(threads), "they wait")
    first.release()
    for thread in threads:
        thread.join()
    assert entered == [0, 1, 2, 3, 4]


def hold(url: str, name: str, until_confirmed: Event, held: Event) -> None:
    with redis.Redis.from_url(url) as client:
        lock = Lock(client, name, timeout=300)
        assert lock.acquire()
        held.set()
        assert until_confirmed.wait(60)
        lock.release()


@pytest.mark.usefixtures("seldom_polls")
def test_a_grant_by_message_is_confirmed(
    client: redis.Redis, redis_server: RedisServer, name: str
) -> None:
    """It lives for its timeout, and not for the claim window of the message."""
    context = multiprocessing.get_context("spawn")
    confirmed, held = context.Event(), context.Event()
    process = context.Process(
        target=hold, args=(redis_server.url, name, confirmed, held)
    )
    process.start()
    lock, got = Lock(client, name, timeout=300), list[bool]()
    assert held.wait(60)
    thread = threading.Thread(target=lambda: got.append(lock.acquire()))
    thread.start()
    until(lambda: waiting(lock) == 1, "it waits")
    confirmed.set()
    thread.join()
    process.join()
    assert got == [True]
    assert client.ttl(name) > 200
    client.delete(name)


def test_a_token_of_ones_own(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name, timeout=30, thread_local=False)
    assert lock.acquire(token=TOKEN)
    assert lock.local.token == TOKEN
    assert lock.owned()
    stored = client.get(name)
    assert isinstance(stored, bytes)
    assert stored.startswith(TOKEN + b",")
    other = Lock(client, name)
    assert not other.do_acquire(b"other")
    other.do_release(TOKEN.decode())
    with pytest.raises(LockNotOwnedError) as caught:
        lock.release()
    assert caught.value.lock_name == name
    assert lock.local.token is None
    with pytest.raises(ConfigurationError):
        lock.acquire(token=TOKEN + b",")


def test_a_token_is_of_its_thread(client: redis.Redis, name: str) -> None:
    errors: list[BaseException] = []

    def release(lock: Lock) -> None:
        try:
            lock.release()
        except LockError as exc:
            errors.append(exc)

    for thread_local, failed in ((True, 1), (False, 0)):
        lock = Lock(client, name, timeout=30, thread_local=thread_local)
        assert lock.acquire()
        thread = threading.Thread(target=release, args=(lock,))
        thread.start()
        thread.join()
        assert len(errors) == failed
        if failed:
            lock.release()
            errors.clear()


def test_extend_adds_and_reacquire_begins_anew(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name, timeout=100)
    assert lock.acquire()
    lock.extend(200)
    assert 290 < client.ttl(name) <= 300
    lock.reacquire()
    assert 90 < client.ttl(name) <= 100
    lock.extend(500, replace_ttl=True)
    assert 490 < client.ttl(name) <= 500
    lock.extend(50, replace_ttl=True)
    assert 40 < client.ttl(name) <= 50
    lock.extend(-20)
    assert 20 < client.ttl(name) <= 30
    assert lock.owned()
    lock.extend(0, replace_ttl=True)  # as PEXPIRE 0
    assert not lock.locked()
    for call in (lambda: lock.extend(1), lock.reacquire, lock.release):
        with pytest.raises(LockNotOwnedError):
            call()


def test_dropping_the_lock_or_closing_keeps_the_grant(
    client: redis.Redis, name: str
) -> None:
    """As with redis-py: a lock that is not released ends with its timeout."""
    assert Lock(client, name, timeout=300).acquire()
    gc.collect()
    assert Lock(client, name).locked()
    assert client.delete(name)


@pytest.mark.parametrize("package", [redis, valkey])
def test_settings_of_either_library(
    package: ModuleType, redis_server: RedisServer, name: str
) -> None:
    for kind in (package.from_url, package.asyncio.from_url):
        lock = Lock(kind(f"{redis_server.url[:-1]}3", decode_responses=True), name)
        assert lock.acquire(blocking=False)
        assert not Lock(package.from_url(f"{redis_server.url[:-1]}3"), name).acquire(
            blocking=False
        )
        lock.release()
        with pytest.raises(package.exceptions.LockError):
            lock.release()


def test_unsupported_arguments_are_named(client: redis.Redis) -> None:
    sentinel: Any = redis.Sentinel([("localhost", 1)])  # type: ignore[no-untyped-call]
    for given, of in (
        (object(), "object is no client of one server"),
        (sentinel, "Sentinel is no client"),
        (sentinel.master_for("main"), "Redis blocks"),
    ):
        with pytest.raises(ConfigurationError, match=of):
            Lock(given, "order-42")
    for name in ("", b"\xff", 42):
        with pytest.raises(ConfigurationError):
            Lock(client, name)  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_outage_raises_their_errors(start_redis: StartRedis) -> None:
    server = start_redis()
    with redis.Redis.from_url(server.url) as client:
        lock = Lock(client, "order-42", timeout=30)
        assert lock.acquire()
        server.close()
        with pytest.raises(RedisConnectionError):
            lock.release()


def in_child(name: str, lock: Lock, got: Connection) -> None:
    got.send((lock.acquire(blocking=False), Lock(lock.redis, name + "2").acquire()))


def test_a_forked_child_opens_its_own(client: redis.Redis, name: str) -> None:
    lock = Lock(client, name, timeout=30)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    with lock:
        process = context.Process(target=in_child, args=(name, lock, there))
        process.start()
        assert here.poll(60)
        assert here.recv() == (False, True)
        process.join()
        assert lock.owned()


@pytest.mark.slow
def test_an_interrupted_thread_leaves_no_grant(
    client: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is there, and the token does not reach the thread."""
    lock = Lock(client, name, timeout=300)
    assert not lock.locked()

    def interrupted(_: Obtained) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Obtained, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    until(lambda: not lock.locked(), "given back")


@pytest.mark.asyncio
async def test_asyncio(redis_server: RedisServer, name: str) -> None:
    async with redis.asyncio.from_url(redis_server.url) as client:
        ours: Any = client.lock(name, timeout=30, lock_class=AsyncLock)  # type: ignore[arg-type]
        theirs = client.lock(name, timeout=30)
        async with ours:
            assert not await theirs.acquire(blocking=False)
            waiting = asyncio.create_task(theirs.acquire(blocking_timeout=20))
            await asyncio.sleep(0)
        assert await waiting
        assert not await ours.acquire(blocking_timeout=0.05)
        await theirs.release()
        async with ours:
            assert await ours.owned()
            await ours.extend(10)
            await ours.reacquire()
        with pytest.raises(LockError):
            await ours.release()


@pytest.mark.asyncio
async def test_a_cancelled_task_leaves_nothing(
    redis_server: RedisServer, name: str
) -> None:
    async with redis.asyncio.from_url(redis_server.url) as client:
        held = AsyncLock(client, name, timeout=300)
        await held.acquire()
        for turns in range(12):
            other = AsyncLock(client, name, timeout=300)
            task = asyncio.create_task(other.acquire())
            await asyncio.sleep(0.001 * turns)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await held.release()
        for turns in range(12):
            other = AsyncLock(client, name, timeout=300)
            task = asyncio.create_task(other.acquire())
            await asyncio.sleep(0.0003 * turns)
            task.cancel()
            with suppress(asyncio.CancelledError):
                if await task:
                    await other.release()
        assert await held.acquire(blocking_timeout=20)
        await held.release()
