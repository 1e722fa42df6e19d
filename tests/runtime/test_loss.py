"""Loss: the body is cancelled and gets the error, whatever else goes on in it."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from aiorwlock_remote import (
    ConfigurationError,
    Held,
    LockLost,
    Locks,
    NotOwner,
    connect,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.testing.conformance.actors import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("renewed_often")]

NAME = ("lost", 1)


async def force(locks: Locks) -> None:
    """Break whatever holds the resource."""
    async for seen in locks.list():
        assert await locks.force_release(seen, reason="test") == 1


async def test_unseen_holders_are_not_broken(locks: Locks) -> None:
    for wrong in (None, "order/1", resource(*NAME)):
        with pytest.raises(ConfigurationError, match="takes a LockInfo"):
            await locks.force_release(wrong, reason="test")  # type: ignore[arg-type]


async def test_error_beside_the_cancellation_is_kept(near: Locks) -> None:
    """A task group whose child fails while it is cancelled: the error comes out."""

    async def stubborn() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        async with near.mutex(*NAME), anyio.create_task_group() as group:
            group.start_soon(stubborn)
            await anyio.wait_all_tasks_blocked()
            await force(near)
    assert caught.group_contains(KeyError)
    assert not await near.mutex(*NAME).locked()


async def test_error_while_being_cancelled_is_kept(near: Locks) -> None:
    """A body that fails in its cleanup raises that, not the loss."""
    with pytest.raises(KeyError):
        async with near.mutex(*NAME):
            await force(near)
            try:
                await anyio.sleep_forever()
            finally:
                raise KeyError


async def test_body_that_never_awaits_gets_the_loss_at_its_end(near: Locks) -> None:
    """Finished in ignorance of the loss, it still was not protected."""
    with pytest.raises(LockLost) as caught:
        async with near.mutex(*NAME):
            await force(near)
    assert caught.value.reason == "forced"


async def test_outer_cancellation_wins(near: Locks) -> None:
    """Cancelled from outside and lost: the cancellation propagates."""
    with anyio.CancelScope() as outer:
        async with near.mutex(*NAME):
            await force(near)
            outer.cancel()
            await anyio.sleep_forever()
    assert outer.cancelled_caught


async def test_outer_deadline_ends_as_a_timeout(near: Locks) -> None:
    """``fail_after`` around ``async with`` raises its own TimeoutError."""
    with pytest.raises(TimeoutError), anyio.fail_after(0.01):
        async with near.mutex(*NAME):
            await anyio.sleep_forever()
    assert not await near.mutex(*NAME).locked()


@pytest.mark.only_on("asyncio", "they are asyncio's own")
async def test_outer_deadline_of_asyncio(near: Locks) -> None:
    async def work() -> None:
        async with near.mutex(*NAME):
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await work()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.01)
    assert not await near.mutex(*NAME).locked()


async def test_inner_timeout_is_not_taken_for_a_loss(near: Locks) -> None:
    """``fail_after`` inside the body raises its own TimeoutError."""
    with pytest.raises(TimeoutError):
        async with near.mutex(*NAME):
            with anyio.fail_after(0.01):
                await anyio.sleep_forever()


async def test_guard_cancels_what_it_guards(near: Locks) -> None:
    """``guard`` ends with LockLost when the grant goes, without ``async with``."""
    held = await near.mutex(*NAME).acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(force, near)
        with pytest.raises(LockLost):
            await held.guard(anyio.sleep_forever())
    with pytest.raises(LockLost):
        await held.guard(anyio.sleep_forever())


async def test_guard_of_what_moves_the_grant(near: Locks) -> None:
    """What it was moved to is checked after, and watched."""
    held = await near.mutex(*NAME).acquire()
    reader = await held.guard(held.downgrade())
    assert reader.valid

    async def upgrade_and_wait() -> None:
        writer = await reader.upgrade()
        assert writer.valid
        await force(near)
        await anyio.sleep_forever()

    with pytest.raises(LockLost) as caught:
        await reader.guard(upgrade_and_wait())
    assert caught.value.reason == "forced"
    assert caught.value.mode == "write"


async def test_on_lost_is_called_not_awaited(near: Locks) -> None:
    async def never(held: Held) -> None:
        pytest.fail(str(held))

    with pytest.raises(ConfigurationError, match="would not be awaited"):
        near.mutex(*NAME, on_lost=never)


async def test_on_lost_flag_and_callable(near: Locks) -> None:
    """``"flag"`` lets the body run on; a callable is called, too."""
    async with near.mutex(*NAME, on_lost="flag") as held:
        await force(near)
        await _lost(held)
    losses: list[Held] = []
    async with near.mutex(*NAME, on_lost=losses.append) as held:
        await force(near)
        await _lost(held)

        async def is_notified() -> bool:
            return bool(losses)

        # The keeper's thread knows first; the loop is notified next.
        await wait_until(is_notified, 20)
    assert losses == [held]


async def test_release_of_a_moved_grant_after_its_loss_raises(near: Locks) -> None:
    """After a downgrade the newest grant is the one that is watched and released."""
    with pytest.raises(LockLost):
        async with near.rwlock(*NAME).writer as writer:
            reader = await writer.downgrade()
            with pytest.raises(NotOwner):
                writer.check()
            await force(near)
            await anyio.sleep_forever()
    assert reader.lost == "forced"


async def test_on_lost_after_a_move_gets_the_newest(near: Locks) -> None:
    """Once, and not what was moved."""
    losses: list[Held] = []
    async with near.rwlock(*NAME, on_lost=losses.append).writer as writer:
        newest = await (await writer.downgrade()).upgrade()
        await force(near)
        await _lost(newest)

        async def is_notified() -> bool:
            return bool(losses)

        await wait_until(is_notified, 20)
    assert losses == [newest]
    assert writer.lost is None


async def test_sessions_do_not_mix() -> None:
    """A loss in one task leaves another task's body alone."""
    async with connect("memory://mix") as locks:
        ended: list[str] = []

        async def body(name: int, lost: anyio.Event) -> None:
            async with locks.mutex("mix", name):
                await lost.wait()
                ended.append("well")

        event = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(body, 1, event)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(LockLost):
                async with locks.mutex("mix", 2):
                    seen = await locks.mutex("mix", 2).info()
                    await locks.force_release(seen, reason="test")
                    await anyio.sleep_forever()
            event.set()
        assert ended == ["well"]


async def _lost(held: Held) -> None:
    with anyio.fail_after(10):
        while held.lost is None:  # noqa: ASYNC110 - no event to be had
            await anyio.sleep(0.01)
