"""A ``Locks`` that is closed while the store has not answered leaves nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Closed, Locks, connect
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned
from aiorwlock_remote.runtime.cleanup import InFlightGrants
from aiorwlock_remote.testing.faults import Fate, FaultyLink, FaultyStore
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = pytest.mark.anyio

History = Callable[[Locks, FaultyLink], Awaitable[object]]


def silent(link: FaultyLink) -> None:
    """From now on requests are carried out, and answered when it is too late."""
    link.hold_back = True


async def tries(locks: Locks, link: FaultyLink) -> object:
    silent(link)
    return await locks.mutex("order", 1).try_acquire()


async def tries_as_acquire(locks: Locks, link: FaultyLink) -> object:
    silent(link)
    async with locks.mutex("order", 1).acquire(timeout=0) as held:
        return held


async def takes_several(locks: Locks, link: FaultyLink) -> object:
    silent(link)
    return await locks.multi(locks.mutex("order", 1), locks.mutex("order", 2))


async def downgrades(locks: Locks, link: FaultyLink) -> object:
    held = await locks.mutex("order", 1).acquire()
    silent(link)
    return await held.downgrade()


async def upgrades(locks: Locks, link: FaultyLink) -> object:
    held = await locks.rwlock("order", 1).reader.acquire()
    silent(link)
    return await held.upgrade()


async def tries_to_upgrade(locks: Locks, link: FaultyLink) -> object:
    held = await locks.rwlock("order", 1).reader.acquire()
    silent(link)
    return await held.try_upgrade()


async def adopts(locks: Locks, link: FaultyLink) -> object:
    ticket = (await locks.mutex("order", 1).acquire()).detach()
    silent(link)
    return await locks.adopt(ticket)


@pytest.mark.parametrize(
    "history",
    [
        adopts,
        tries,
        tries_as_acquire,
        takes_several,
        downgrades,
        upgrades,
        tries_to_upgrade,
    ],
)
async def test_a_request_under_way(
    store: FaultyMemory, link: FaultyLink, near: Locks, history: History
) -> None:
    """Its grant is withdrawn, also if it never expired; the caller gets an error."""
    locks = await connect(store, lease=None)
    errors: list[BaseException] = []

    async def asks() -> None:
        try:
            await history(locks, link)
        except Closed as exc:
            errors.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks)
        with anyio.fail_after(5):
            while not link.held_back:
                await checkpoint()
        await locks.aclose()
        link.let_through()
    assert [type(error) for error in errors] == [Closed]
    assert [d async for d in near.list()] == []


@pytest.mark.parametrize("history", [downgrades, upgrades, tries_to_upgrade])
async def test_a_move_whose_answer_is_lost(
    store: FaultyMemory, link: FaultyLink, history: History
) -> None:
    """A conversion reports the closing, not that the link broke by then."""
    locks = await connect(store, lease=None)

    async def asks() -> None:
        with pytest.raises(Closed):
            await history(locks, link)

    async with anyio.create_task_group() as tasks:
        link.fate = lambda _: Fate.LOSE if link.hold_back else Fate.PASS
        tasks.start_soon(asks)
        with anyio.fail_after(5):
            while not link.held_back:
                await checkpoint()
        await locks.aclose()
        link.let_through()


async def test_who_closes_and_is_cancelled_waits_for_the_end(
    store: FaultyMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent is carried out; a loop that ended before would take it along."""
    locks, ended = await connect(store), anyio.Event()
    close = FaultyStore.aclose

    async def slowly(inner: FaultyStore) -> None:
        await anyio.sleep(0.05)
        await close(inner)
        ended.set()

    monkeypatch.setattr(FaultyStore, "aclose", slowly)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await locks.aclose()
    assert ended.is_set()


async def test_a_grant_that_somebody_may_not_want(
    store: FaultyMemory, near: Locks
) -> None:
    """Granted, and not handed out yet: it is taken back as well."""
    locks = await connect(store, lease=None)
    ending = anyio.Event()

    async def hung_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ending.set()
            with anyio.CancelScope(shield=True):
                await closed.wait()

    closed, errors = anyio.Event(), list[BaseException]()

    async def asks() -> None:
        try:
            await locks.mutex("order", 1).acquire().unless(hung_up)
        except (Closed, AcquireAbandoned) as exc:
            errors.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks)
        with anyio.fail_after(5):
            await ending.wait()
        await locks.aclose()
        closed.set()
    assert [type(error) for error in errors] == [Closed]
    assert [d async for d in near.list()] == []


async def test_failed_requests_are_not_withdrawn() -> None:
    """Nor remembered: a store that is away for long would fill the memory."""
    closing, taken_back = InFlightGrants(), list[str]()
    with pytest.raises(KeyError), closing.under(lambda: taken_back.append("failed")):
        raise KeyError
    with pytest.raises(Closed), closing.under(lambda: taken_back.append("asked")):
        closing.close()
    assert taken_back == ["asked"]


async def test_once_closed_no_request_begins() -> None:
    closing = InFlightGrants()
    closing.close()
    with pytest.raises(Closed):
        closing.begin(lambda: None)
