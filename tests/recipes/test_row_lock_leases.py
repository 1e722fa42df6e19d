"""Row locks with a lease: who dies, who is broken, whose reply is lost."""

from __future__ import annotations

import gc
import itertools
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import LockLost, WouldDeadlock, connect
from aiorwlock_remote.core.row import RowState
from aiorwlock_remote.core.row_grants import RowGrant, load_row_grants
from aiorwlock_remote.errors import AcquireUncertain, BadRecord, ConfigurationError
from aiorwlock_remote.locks.held import state_of
from aiorwlock_remote.recipes import RowLock
from tests.backends.redis.connections import eventually
from tests.recipes.fix_rows import LocksSite, port_of, through
from tests.recipes.row_sites import FREE, LOCKED, MODES, PATIENCE, RowSite, ask, opened
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("what differs is in the driver's sockets, and tested there"),
]


SHORT, KEPT = 1.5, 3.0


async def die(site: LocksSite, mode: str, lease: float) -> int | None:
    """A process takes row 1 and is never heard of again; its fence."""
    async with connect(site.url) as locks:
        held = await ask(locks.row_lock("invoices", 1, lease=lease), mode)("doomed")
        stands = site.plain.rows("SELECT lock_grants FROM invoices WHERE id = 1")
        fence = held.fence
    if mode == "read":
        site.plain.step("RLock", reason="doomed")
    else:
        site.plain.step("WLock", reason="doomed")
    site.plain.run("UPDATE invoices SET lock_grants = {} WHERE id = 1", stands[0][0])
    return fence


@pytest.mark.only_on("asyncio", "it is the databases' clock that counts")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("sqlite", "write"),
        ("postgresql", "read"),
        ("mariadb", "write"),
        ("mysql", "read"),
    ],
)
async def test_who_died_is_out_of_the_way(
    name: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """When the lease ends; its fence is the lower one."""
    site: LocksSite = request.getfixturevalue(name)
    fence = await die(site, mode, SHORT)
    assert not site.plain.step("WLock")
    async with connect(site.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        (grant,) = await lock.grants()
        assert (grant.mode, grant.fence) == (mode, fence)
        async with lock.write(timeout=PATIENCE) as held:
            assert held.fence is not None
            assert fence is not None
            assert held.fence > fence
            assert site.plain.state() == LOCKED["write"]
    assert site.plain.state() == FREE


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_foreign_readers_stay(sqlite: LocksSite) -> None:
    """One of ours died among others: only ours is taken out."""
    sqlite.plain.step("RLock", reason="theirs")
    await die(sqlite, "read", SHORT)
    assert sqlite.plain.state() == ("ReadLock", 2)
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        await anyio.sleep(SHORT + 0.1)
        assert await lock.try_write() is None
        async with lock.read():
            assert sqlite.plain.state() == ("ReadLock", 2)
        assert sqlite.plain.state() == ("ReadLock", 1)
        sqlite.plain.step("RUnlock")
        async with lock.write():
            pass


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_without_leases_they_hold_for_ever(sqlite: LocksSite) -> None:
    """Ours in both ways share a row; only the lease ends."""
    async with connect(sqlite.url) as locks, connect(sqlite.url) as others:
        held = await locks.row_lock("invoices", 1).read("no lease")
        await die(sqlite, "read", SHORT)
        lock = others.row_lock("invoices", 1, lease=30)
        await anyio.sleep(SHORT + 0.1)
        assert await lock.try_write() is None
        await held.release()
        async with lock.write():
            pass


@pytest.mark.only_on("trio", "the longer way")
async def test_a_holder_is_kept(sqlite: LocksSite) -> None:
    async with connect(sqlite.url) as locks, connect(sqlite.url) as others:
        held = await locks.row_lock("invoices", 1, lease=KEPT).write()
        other = others.row_lock("invoices", 1, lease=KEPT)
        (first,) = await other.grants()
        for _ in range(3):
            await anyio.sleep(KEPT / 2.5)
            held.check()
            assert held.expires_in
            assert await other.try_write() is None
        (last,) = await other.grants()
        assert (last.holder, last.fence) == (first.holder, first.fence)
        assert last.expires > first.expires
        await held.release()


@pytest.mark.parametrize("mode", MODES)
async def test_broken(sqlite: LocksSite, mode: str) -> None:
    """Somebody unlocks it by hand: the body is cancelled by ``LockLost``."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=KEPT)
        with anyio.fail_after(PATIENCE), pytest.raises(LockLost) as caught:
            async with ask(lock, mode)():
                assert sqlite.plain.step("RUnlock" if mode == "read" else "WUnlock")
                await anyio.sleep_forever()
        assert caught.value.reason == "forced"
        held = await ask(lock, mode)()
        assert sqlite.plain.step("RUnlock" if mode == "read" else "WUnlock")
        with pytest.raises(LockLost):
            await held.extend()
        with pytest.raises(LockLost):
            held.check()
        assert held.expires_in == 0.0
        with pytest.raises(LockLost):
            await held.release()
    assert sqlite.plain.state() == FREE


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_a_foreign_writer_after_ours_is_left_alone(sqlite: LocksSite) -> None:
    """Ours was unlocked by hand; the writer who came then is no grant of ours."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=SHORT)
        held = await lock.write("ours")
        sqlite.plain.step("WUnlock")
        sqlite.plain.step("WLock", reason="theirs")
        await anyio.sleep(SHORT + 0.1)
        assert await lock.try_write() is None
        with pytest.raises(LockLost):
            await held.release()
        assert sqlite.plain.stands() == ("WriteLock", 0, "theirs")


@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_reply_is_resolved(postgresql: LocksSite, mode: str) -> None:
    """By its ticket: after each reply that may be lost, all is well in the end."""
    with Proxy(port_of(postgresql.url)) as proxy:
        async with connect(through(proxy, postgresql.url)) as locks:
            lock = locks.row_lock("invoices", 1, lease=30)
            async with ask(lock, mode)():  # its statements are prepared
                pass
            for count in itertools.chain(range(1, 500, 60), range(500, 1400, 150)):
                proxy.cut_after(count, to="client")
                held = await ask(lock, mode)(timeout=PATIENCE)
                assert postgresql.plain.state() == LOCKED[mode]
                proxy.cut_after(count, to="client")
                await held.release()
                assert postgresql.plain.state() == FREE


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_a_server_that_says_nothing(postgresql: LocksSite) -> None:
    """What may be held ends with its lease, and that is reported."""
    with Proxy(port_of(postgresql.url)) as proxy:
        url = through(proxy, postgresql.url) + "?call_timeout=1.5"
        async with connect(url) as locks:
            lock = locks.row_lock("invoices", 1, lease=30)
            await lock.look()
            proxy.black_hole(on=True)
            with pytest.raises(AcquireUncertain) as caught:
                await lock.write(timeout=0)
            assert caught.value.lease == 30
            proxy.black_hole(on=False)


async def test_fences(sqlite: LocksSite) -> None:
    """They rise with each writer and each batch of readers, who share one."""
    async with connect(sqlite.url) as locks, connect(sqlite.url) as others:
        lock = locks.row_lock("invoices", 1, lease=30)
        other = others.row_lock("invoices", 1, lease=30)
        fences = []
        for _ in range(3):
            async with lock.write() as held:
                fences.append(held.fence)
            first = await lock.read()
            try:
                async with other.read() as second:
                    assert second.fence == first.fence
            finally:
                await first.release()
            fences.append(first.fence)
    assert all(one < two for one, two in itertools.pairwise(map(int, map(str, fences))))


@pytest.mark.parametrize("text", ["?", "2;x;0;", "1;n;x;;", "1;n;1;zz", "1;n;1;;a,b"])
async def test_damaged_grants(sqlite: LocksSite, text: str) -> None:
    sqlite.plain.run("UPDATE invoices SET lock_grants = {} WHERE id = 1", text)
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        with pytest.raises(BadRecord):
            await lock.grants()
        with pytest.raises(BadRecord):
            await lock.read(timeout=5)
        with pytest.raises(BadRecord) as caught:
            await lock.write(timeout=5)
        sqlite.plain.run(caught.value.hint)
        async with lock.write():
            pass


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_more_readers_than_the_column_holds(sqlite: LocksSite) -> None:
    """They wait for one to leave."""
    sqlite.lease = 30.0
    async with opened(sqlite) as lock_of, anyio.create_task_group() as group:
        inside = 0

        async def read() -> None:
            nonlocal inside
            async with lock_of(1).read(timeout=PATIENCE):
                inside += 1
                await anyio.sleep(0.2)

        for _ in range(60):
            group.start_soon(read)
    assert inside == 60
    assert sqlite.plain.state() == FREE


@pytest.mark.parametrize("lease", [0, 0.1, -1, float("nan"), "1"])
async def test_leases_that_cannot_be(sqlite: LocksSite, lease: float) -> None:
    async with connect(sqlite.url) as locks:
        with pytest.raises(ConfigurationError):
            locks.row_lock("invoices", 1, lease=lease)


# ------------------------------------------------------------------------------
# Row locks whose lease is over, or whose grant is gone: the holder gets ``LockLost``.
#
# How a loss cancels a body, and which error wins, is tested in
# tests/runtime/test_loss.py for all grants.


@pytest.fixture
def leased(sqlite: LocksSite) -> LocksSite:
    sqlite.lease = 30.0
    return sqlite


@pytest.mark.parametrize("mode", MODES)
async def test_a_release_after_the_deadline(leased: LocksSite, mode: str) -> None:
    """The row is released all the same, although no other program has come since."""
    async with opened(leased) as lock_of:
        held = await ask(lock_of(1), mode)()
        state_of(held).lease.deadline = 0.0
        with pytest.raises(LockLost, match="lost: expired"):
            await held.release()
        assert held.lost == "expired"
        assert not held.valid
        await eventually(lambda: leased.plain.state() == FREE, "released")


async def test_a_grant_that_was_purged_is_lost(leased: LocksSite) -> None:
    """The row stands, without it: that is no row that was deleted."""
    async with opened(leased) as lock_of:
        held = await lock_of(1).write()
        leased.plain.run("UPDATE invoices SET lock_grants = NULL, lock_mark = 'Unlock'")
        with pytest.raises(LockLost, match="lost: forced"):
            await held.release()


# ------------------------------------------------------------------------------
# Row locks whose ``RowHeld`` is dropped. What holds for all grants is tested in
# tests/locks/test_dropped_objects.py.


LEASE = 1.5


@contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield recorded
        gc.collect()


async def drop(lock: RowLock) -> None:
    await lock.write()


async def test_it_ends_with_its_lease(sqlite: LocksSite) -> None:
    """Though the warning refers to it."""
    async with connect(sqlite.url) as locks, connect(sqlite.url) as others:
        lock = locks.row_lock("invoices", 1, lease=LEASE)
        with recorded_warnings() as recorded:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drop, lock)
        (warning,) = recorded
        assert warning.category is ResourceWarning
        assert "invoices/1" in str(warning.message)
        assert str(warning.message).endswith("it ends with its lease")
        async with others.row_lock("invoices", 1, lease=30).write(timeout=PATIENCE):
            pass


async def test_without_a_lease_it_stays(sqlite: LocksSite) -> None:
    """Until the ``Locks`` is closed."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1)
        with recorded_warnings() as recorded:
            await drop(lock)
        (warning,) = recorded
        assert warning.category is ResourceWarning
        assert str(warning.message).endswith("the row stays locked")
        with pytest.raises(WouldDeadlock):
            await drop(lock)
        assert sqlite.plain.state() == LOCKED["write"]
    assert sqlite.plain.state() == FREE


# --- Leased rows whose event loop is blocked: they are renewed in another thread


LEASES_BLOCKED = 2.5


def stored_grant(site: RowSite) -> RowGrant:
    """Read the one grant in row 1, as another process does; no event loop is needed."""
    ((mark, readers, reason, text),) = site.plain.rows(
        "SELECT lock_mark, read_lock_count, lock_reason, lock_grants"
        " FROM invoices WHERE id = 1"
    )
    stored = load_row_grants(RowState(mark, int(readers), str(reason)), text)
    assert stored is not None
    (grant,) = stored.grants
    return grant


def block_until_renewed(site: LocksSite, until: int) -> None:
    """Block the caller, and its loop, until the stored lease ends after ``until``."""
    last_chance = time.monotonic() + PATIENCE
    while stored_grant(site).expires <= until:
        assert time.monotonic() < last_chance, "the row was not renewed"
        time.sleep(LEASE / 20)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb", "mysql", "oracle"])
async def test_a_blocked_loop_keeps_its_row(
    name: str, mode: str, request: pytest.FixtureRequest
) -> None:
    site: LocksSite = request.getfixturevalue(name)
    async with connect(site.url) as locks:
        async with ask(locks.row_lock("invoices", 1, lease=LEASE), mode)() as held:
            begun = stored_grant(site)
            blocked_for = round(LEASES_BLOCKED * LEASE * 1_000_000)
            block_until_renewed(site, begun.expires + blocked_for)
            held.check()
            await anyio.lowlevel.checkpoint()  # a loss would cancel the body here
            assert site.plain.state() == LOCKED[mode]
            assert stored_grant(site).fence == held.fence == begun.fence
        assert site.plain.state() == FREE
