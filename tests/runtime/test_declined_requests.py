"""The store says that it did not carry out a request: it is sent again, whichever."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, Closed, Held, Locks
from aiorwlock_remote.core.commands import Acquire, Command, Downgrade
from aiorwlock_remote.runtime import cleanup
from aiorwlock_remote.runtime.cleanup import MAX_RETRIES
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink
from tests.runtime.cleanup import NAME

pytestmark = pytest.mark.anyio

Use = Callable[[Locks], Coroutine[Any, Any, object]]


async def _acquire(locks: Locks) -> None:
    async with locks.mutex(*NAME).acquire(timeout=20):
        pass


async def _endless(locks: Locks) -> None:
    async with locks.rwlock(*NAME).reader:
        pass


async def _try(locks: Locks) -> None:
    held = await locks.mutex(*NAME).try_acquire()
    assert held is not None
    await held.release()


async def _several(locks: Locks) -> None:
    async with locks.multi(locks.mutex(*NAME), locks.mutex("other", 1)):
        pass


async def _moves(locks: Locks) -> None:
    async with locks.rwlock(*NAME).writer as held:
        reader = await held.downgrade()
        assert await reader.try_upgrade()


async def _extend(locks: Locks) -> None:
    async with locks.mutex(*NAME) as held:
        await held.extend()


async def _pass_on(locks: Locks) -> None:
    held = await locks.mutex(*NAME).acquire()
    await (await locks.adopt(held.detach())).release()


async def _force(locks: Locks) -> None:
    await locks.acquire_mutex_lock(*NAME, "ticket")
    assert await locks.force_release(await locks.mutex(*NAME).info(), reason="x")


async def _published(locks: Locks) -> None:
    assert await locks.acquire_writer_lock(*NAME, "ticket")
    assert await locks.release_writer_lock(*NAME, "ticket")


USES: dict[str, Use] = {
    "acquire": _acquire,
    "endless": _endless,
    "try": _try,
    "several": _several,
    "moves": _moves,
    "extend": _extend,
    "pass_on": _pass_on,
    "force": _force,
    "published": _published,
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is sent again without a pause."""
    monkeypatch.setattr(cleanup, "back_off", lambda *_: 0.0)


@pytest.mark.parametrize("use", USES)
async def test_a_declined_request_is_sent_again(
    link: FaultyLink, locks: Locks, near: Locks, use: str
) -> None:
    """Each request is declined, and carried out the next time: nobody notices."""
    declined = set[Command]()

    def once(command: Command) -> Fate:
        if command in declined:
            return Fate.PASS
        declined.add(command)
        return Fate.DECLINE

    link.fate = once
    await USES[use](locks)
    assert declined
    assert not await near.mutex(*NAME).locked()


@pytest.mark.parametrize("ask", [_try, _several, _published])
async def test_a_declined_request_fails_in_the_end(
    link: FaultyLink, locks: Locks, near: Locks, ask: Use
) -> None:
    link.fate = lambda _: Fate.DECLINE
    with pytest.raises(BackendUnavailable) as caught:
        await ask(locks)
    assert caught.value.nothing_done
    assert len(link.sent) >= 1 + MAX_RETRIES
    link.fate = lambda _: Fate.PASS
    assert not await near.mutex(*NAME).locked()


async def test_a_declined_acquire_fails_at_its_timeout(
    link: FaultyLink, locks: Locks
) -> None:
    """As long as there is time, it asks; then it raises what the store said."""
    link.fate = lambda _: Fate.DECLINE
    with pytest.raises(BackendUnavailable):
        await locks.mutex(*NAME).acquire(timeout=0.5)
    assert len(link.sent) > 1


async def test_a_declined_release_fails_in_the_end(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """And it is sent again in the background, as any that failed."""
    held = await locks.mutex(*NAME, lease=60).acquire()
    link.fate = lambda _: Fate.DECLINE
    with pytest.raises(BackendUnavailable):
        await held.release()
    link.fate = lambda _: Fate.PASS
    await wait_until(partial(_free, near), 10)


async def test_a_declined_conversion_keeps_the_grant(
    link: FaultyLink, locks: Locks
) -> None:
    """It is known not to have been moved."""
    held = await locks.rwlock(*NAME).writer.acquire()
    link.fate = lambda command: (
        Fate.DECLINE if isinstance(command, Downgrade) else Fate.PASS
    )
    with pytest.raises(BackendUnavailable):
        await held.downgrade()
    held.check()
    assert await held.release()


async def _await(locks: Locks) -> Held:
    return await locks.mutex(*NAME, lease=None).acquire()


async def _await_now(locks: Locks) -> Held | None:
    return await locks.mutex(*NAME, lease=None).try_acquire()


@pytest.mark.parametrize("ask", [_await, _await_now])
async def test_a_declined_request_is_cancelled_before_its_retry(
    link: FaultyLink,
    locks: Locks,
    near: Locks,
    ask: Use,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would have been sent next is not, once it was taken back."""
    monkeypatch.setattr(cleanup, "back_off", lambda *_: 1.0)
    link.fate = lambda command: (
        Fate.DECLINE if isinstance(command, Acquire) else Fate.PASS
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, locks)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    link.fate = lambda _: Fate.PASS
    await anyio.wait_all_tasks_blocked()
    assert not await near.mutex(*NAME).locked()


async def test_a_declined_request_is_closed_before_its_retry(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    async def ask() -> None:
        with pytest.raises(Closed):
            await locks.mutex(*NAME, lease=None).try_acquire()

    async def decline_and_close() -> None:
        await locks.aclose()
        link.fate = lambda _: Fate.PASS

    def decline(command: Command) -> Fate:
        if not isinstance(command, Acquire):
            return Fate.PASS
        if len(link.sent) == 1:
            tasks.start_soon(decline_and_close)
        return Fate.DECLINE

    link.fate = decline
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
    assert not await near.mutex(*NAME).locked()


async def _free(near: Locks) -> bool:
    return not await near.mutex(*NAME).locked()
