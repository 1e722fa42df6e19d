"""The etcd store at one member: fences, waiting, keys that end."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from aiorwlock_remote import BadRecord, Held, Locks, connect
from aiorwlock_remote.backends.etcd import cas, idle_lease, messages, watches
from aiorwlock_remote.backends.etcd.store import EtcdStore
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.ports import PollPolicy
from tests.backends.etcd.inside import store_of
from tests.servers.fix_etcd import SharedEtcd, StartEtcd

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "the bridge to trio is the library's own"),
]


class Keys:
    """The keys of ``order/1`` in one folder, by ``etcdctl``."""

    def __init__(self, server: SharedEtcd, url: str) -> None:
        self.server = server
        self.seat: str = f"/{url.rpartition('/')[2]}/order,1"
        self.doorman: str = f"{self.seat},doorman"

    def read(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.server.ctl("get", key, "--write-out=json", "--hex=false")
        )
        one: dict[str, Any] = found.get("kvs", [{}])[0]
        return one

    def record(self) -> dict[str, Any]:
        text = self.server.ctl("get", self.doorman, "--print-value-only")
        record: dict[str, Any] = json.loads(text)
        return record


@pytest.fixture
def keys(etcd_server: SharedEtcd, etcd_url: str) -> Keys:
    return Keys(etcd_server, etcd_url)


async def fence_of(locks: Locks) -> int:
    async with locks.mutex("order", 1) as held:
        return held.fence


async def test_a_fence_is_the_revision_that_stored_the_grant(
    keys: Keys, etcd_url: str
) -> None:
    async with connect(etcd_url) as locks:
        async with locks.mutex("order", 1) as held:
            assert held.fence == keys.read(keys.doorman)["mod_revision"]
            assert held.fence == keys.read(keys.seat)["mod_revision"]
            assert keys.record()["fence"] == "mod_revision"
            await held.extend()
            assert held.fence < keys.read(keys.doorman)["mod_revision"]
            assert keys.record()["last"] == held.fence
        assert keys.read(keys.seat) == {}


async def test_a_fence_is_a_revision_where_a_message_brought_the_state(
    keys: Keys, etcd_url: str
) -> None:
    """Whoever claims by it has heard of no newer revision by an answer of its own."""
    entered: list[Held] = []

    async def enter(client: Locks) -> None:
        entered.append(await client.mutex("order", 1).acquire())

    def queued(number: int) -> bool:
        return len(keys.record().get("queue", ())) == number

    def inside(number: int) -> bool:
        return len(entered) == number

    async with (
        connect(etcd_url) as locks,
        connect(etcd_url) as others,
        anyio.create_task_group() as group,
    ):
        first = await locks.mutex("order", 1).acquire()
        for number, client in enumerate((others, locks), 1):
            group.start_soon(enter, client)
            await until(partial(queued, number))
        leaves = first
        for number in (1, 2):
            put = json.loads(keys.server.ctl("put", "/x", "y", "--write-out=json"))
            await leaves.release()
            await until(partial(inside, number))
            leaves = entered[-1]
            assert leaves.fence > put["header"]["revision"]
        await leaves.release()


async def test_a_doorman_that_was_deleted_makes_no_fence_fall(
    keys: Keys, etcd_url: str
) -> None:
    async with connect(etcd_url) as locks, connect(etcd_url) as others:
        first = await fence_of(locks)
        keys.server.ctl("del", keys.doorman)
        assert await fence_of(others) > first


async def test_keys_from_another_cluster(keys: Keys, etcd_url: str) -> None:
    """Whose revisions were higher, as ``etcdctl make-mirror`` copies them."""
    async with connect(etcd_url) as locks:
        await fence_of(locks)
        high = 2**40
        record = keys.record() | {"last": high}
        record.pop("fence", None)
        keys.server.ctl("put", keys.doorman, json.dumps(record))
        assert await fence_of(locks) == high + 1
        assert await fence_of(locks) == high + 2


async def test_two_doormen_of_one_revision_have_times_of_their_own(
    keys: Keys, etcd_url: str
) -> None:
    """As a transaction of another program copies them; each has a frame of its own."""
    async with connect(etcd_url) as locks, locks.mutex("order", 2):
        await fence_of(locks)
        ahead = keys.record()
        ahead["frame"] += 3_600_000_000
        held = keys.doorman.replace("order,1", "order,2")
        text = keys.server.ctl("get", held, "--print-value-only").strip()
        texts = ((keys.doorman, json.dumps(ahead)), (held, text))
        puts = [messages.put(key.encode(), text.encode()) for key, text in texts]
        request = messages.transaction([], [*map(messages.put_operation, puts)], [])
        call = messages.TXN, request, messages.parse_transaction
        await store_of(locks)._client.call(*call)
        async with connect(etcd_url) as others:
            for number in (1, 2):
                await others.mutex("order", number).info()
            assert (await others.mutex("order", 2).info()).locked
            assert await others.mutex("order", 2).try_acquire() is None


async def test_permits_of_one_step_have_fences_of_their_own(etcd_url: str) -> None:
    """A revision is one number, and a step may grant several permits."""
    async with connect(etcd_url) as locks:
        fences: list[int] = []
        semaphore = locks.semaphore("api", 1, limit=20)

        async def enter() -> None:
            async with semaphore as held:
                fences.append(held.fence)
                await anyio.sleep(0.2)

        for _ in range(3):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(enter)
        assert len(set(fences)) == 60
        for turn in range(2):
            assert max(fences[20 * turn : 20 * turn + 20]) < min(
                fences[20 * turn + 20 : 20 * turn + 40]
            )


async def test_a_waiter_is_notified(etcd_url: str) -> None:
    """By the watch, not by a poll."""
    async with connect(etcd_url) as locks, connect(etcd_url) as others:
        for number in range(5):
            lock = locks.mutex("order", number)
            async with anyio.create_task_group() as group, lock:
                group.start_soon(enter_and_leave, others, number)
                await waiters(locks, number)
        wakeups = others.statistics().wakeups
        assert wakeups["message"] >= 5
        assert wakeups["poll"] == 0
        assert others.statistics().connections["watch"] == "open"


async def enter_and_leave(locks: Locks, number: int) -> None:
    async with locks.mutex("order", number):
        return


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what gives no event."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - as it says
            await anyio.sleep(0.01)


async def waiters(locks: Locks, number: int) -> None:
    while not (await locks.mutex("order", number).info()).queue:  # noqa: ASYNC110
        await anyio.sleep(0.01)


@asynccontextmanager
async def rivals(url: str) -> AsyncIterator[tuple[Locks, Locks]]:
    """Connect two clients; the first has waited before, so it hears who waits."""
    async with connect(url) as one, connect(url) as other:
        async with anyio.create_task_group() as group, other.mutex("order", 0):
            group.start_soon(enter_and_leave, one, 0)
            await until(lambda: store_of(one).arrivals.hears)
        yield one, other


@pytest.mark.parametrize("most", [cas.MAX_CLAIM_BYTES, 0], ids=["brought", "read"])
async def test_a_release_is_not_refused(
    etcd_url: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The holder is notified who joins the queue, and who keeps its entry or leaves."""
    policy = PollPolicy(poll_min=0.2, poll_max=0.3, entry_ttl=12.0, sees_ends=True)
    monkeypatch.setattr(EtcdStore, "poll_policy", policy)
    monkeypatch.setattr(cas, "MAX_CLAIM_BYTES", most)
    async with rivals(etcd_url) as (one, other), anyio.create_task_group() as group:
        steps = store_of(one).steps

        def entries() -> list[int]:
            known = steps.known(resource("order", 1))
            assert known is not None
            assert known.record is not None
            return [entry.expires for entry in known.record.queue]

        async with one.mutex("order", 1):
            group.start_soon(enter_and_leave, other, 1)
            await until(lambda: bool(entries()))
            with anyio.move_on_after(1):
                await other.rwlock("order", 1).reader.acquire()
            # The waiter's queue entry, and no longer that of the reader who left.
            await until(lambda: len(entries()) == 1)
            kept = entries()
            await until(lambda: entries() > kept)  # and not again at once
            refused: list[object] = []
            monkeypatch.setattr(steps, "_log_retry", lambda *_: refused.append(_))
    assert refused == []


async def test_notices_of_strangers_are_nothing(keys: Keys, etcd_url: str) -> None:
    async with rivals(etcd_url) as (one, other), one.mutex("order", 1) as held:
        store = store_of(one)
        notices = store._options.notices_of(store.settings.client_id).decode()
        known = store.steps.known(resource("order", 1))
        for text in (
            *("x", "[]", '{"key":7}', '{"key":"order,1","doorman":"{}"}'),
            '{"key":"order,1","doorman":7,"seat":[]}',
            '{"key":"unknown,1"}',
        ):
            keys.server.ctl("put", notices, text)
        async with anyio.create_task_group() as group:
            group.start_soon(enter_and_leave, other, 1)
            await until(lambda: store.steps.known(resource("order", 1)) != known)
            await held.release()


async def test_a_stream_is_asked_whether_it_lives(
    etcd_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it does, and a member answers so, no resource is read by time."""
    caplog.set_level(logging.INFO, "aiorwlock_remote.etcd")
    monkeypatch.setattr(watches, "PROGRESS_INTERVAL", 0.1)
    signs: list[int] = []
    parse = messages.parse_watch

    def parsed(data: bytes) -> messages.WatchResponse:
        found = parse(data)
        if not (found.created or found.changes):
            signs.append(found.revision)
        return found

    monkeypatch.setattr(messages, "parse_watch", parsed)
    async with (
        connect(etcd_url) as locks,
        connect(etcd_url) as others,
        anyio.create_task_group() as group,
        locks.mutex("order", 1),
    ):
        group.start_soon(enter_and_leave, others, 1)
        await until(lambda: is_notified(others))
        reads = reads_of(others, monkeypatch)
        await until(lambda: len(signs) > 20)
        assert reads == []
        monkeypatch.setattr(messages, "watch_progress", lambda: b"")
        await until(lambda: "watch_lost" in caplog.text)
        await until(lambda: bool(reads))
        await until(lambda: is_notified(others))
    assert "no sign of life" in caplog.text


def reads_of(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Note what the poller of a client reads."""
    poller, reads = store_of(locks).poller, list[object]()
    peek = poller.read

    def read(resource: Any) -> Any:  # noqa: ANN401 - as it is
        reads.append(resource)
        return peek(resource)

    monkeypatch.setattr(poller, "read", read)
    return reads


def is_notified(locks: Locks) -> bool:
    """Whether changes come over a watch now."""
    return locks.statistics().connections["watch"] == "open"


async def test_a_watch_that_ended_is_made_anew(start_etcd: StartEtcd) -> None:
    """The member goes and comes back, its history compacted, while a client waits."""
    member = start_etcd()
    async with connect(member.url) as locks, connect(member.url) as others:
        lock = locks.mutex("order", 1, lease=60)
        async with anyio.create_task_group() as group, lock:
            group.start_soon(enter_and_leave, others, 1)
            await waiters(locks, 1)
            await until(lambda: is_notified(others))
            await anyio.to_thread.run_sync(member.kill)
            await until(lambda: not is_notified(others))
            await anyio.to_thread.run_sync(member.start)
            header = json.loads(member.ctl("get", "x", "--write-out=json"))
            member.ctl("compact", str(header["header"]["revision"]))
            await until(lambda: is_notified(others))
            before = others.statistics().wakeups["message"]
        assert others.statistics().wakeups["message"] > before


async def test_a_foreign_release_is_notified(keys: Keys, etcd_url: str) -> None:
    keys.server.ctl("put", keys.seat, "theirs,1764380000")
    async with connect(etcd_url) as locks:
        assert await locks.mutex("order", 1).try_acquire() is None
        async with anyio.create_task_group() as group:
            group.start_soon(enter_and_leave, locks, 1)
            await until(lambda: is_notified(locks))
            before = locks.statistics().wakeups["message"]
            keys.server.ctl("del", keys.seat)
        assert locks.statistics().wakeups["message"] > before


async def test_a_record_of_a_program_with_a_lease(keys: Keys, etcd_url: str) -> None:
    """The cluster ends it when its program has died."""
    lease = keys.server.ctl("lease", "grant", "1").split()[1]
    keys.server.ctl("put", f"--lease={lease}", keys.seat, "theirs,1764380000")
    async with connect(etcd_url) as locks:
        assert await locks.mutex("order", 1).try_acquire() is None
        with anyio.fail_after(20):
            await fence_of(locks)


async def test_doormen_of_free_resources_end(keys: Keys, etcd_url: str) -> None:
    async with connect(etcd_url, fence_memory=300) as locks:
        async with locks.mutex("order", 1):
            assert "lease" not in keys.read(keys.doorman)
        lease = keys.read(keys.doorman)["lease"]
        said = keys.server.ctl("lease", "timetolive", f"{lease:x}")
        assert 300 < int(said.partition("remaining(")[2].partition("s)")[0]) <= 375
        # Somebody revokes it: the next doorman gets another one.
        keys.server.ctl("lease", "revoke", f"{lease:x}")
        assert keys.read(keys.doorman) == {}
        assert await fence_of(locks) > 0
        assert keys.read(keys.doorman)["lease"] != lease


def test_a_lost_swap_never_finds_its_resource_absent() -> None:
    """However short the memory is."""
    assert idle_lease.LEAST_SECONDS > 60


async def test_what_others_wrote_is_named(keys: Keys, etcd_url: str) -> None:
    for text in ("{}", '{"v":1}', "\\xff", '{"v":1,"frame":"x"}'):
        keys.server.ctl("put", keys.doorman, text)
        async with connect(etcd_url) as locks:
            with pytest.raises(BadRecord, match="order/1: the stored"):
                await locks.mutex("order", 1).acquire(timeout=0)
            assert [one async for one in locks.list()] == []


async def test_a_list_does_not_forget_what_is_waited_for(
    etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is: how old a lease is, only whoever saw it before knows."""
    monkeypatch.setattr("aiorwlock_remote.cas.version_clock.MAX_VERSIONS_CACHED", 2)
    async with connect(etcd_url) as locks, connect(etcd_url) as others:
        held = await others.mutex("order", 42).acquire()
        store = store_of(locks)
        state = await store.cas.peek(resource("order", 42))
        more = [await others.mutex("other", n).acquire() for n in range(3)]
        assert len([one async for one in locks.list()]) == len([held, *more])
        again = await store.cas.peek(resource("order", 42))
        assert again.mark.written is state.mark.written is not None
        for each in (held, *more):
            await each.release()


async def test_a_long_list(etcd_url: str) -> None:
    """In pages, both keys of each resource together."""
    async with connect(etcd_url) as locks:
        held = [await locks.mutex("page", f"{n}!").acquire() for n in range(150)]
        held += [await locks.mutex("page", str(n)).acquire() for n in range(150)]
        seen = {one.resource_id async for one in locks.list("page")}
        assert len(seen) == 300
        for each in held:
            await each.release()
        assert [one async for one in locks.list()] == []
