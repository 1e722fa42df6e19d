"""An acquisition that is given up when nobody wants it any more leaves nothing."""

from __future__ import annotations

import anyio
import pytest
from anyio import lowlevel

from aiorwlock_remote import LockTimeout, connect
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned

pytestmark = pytest.mark.anyio


async def test_given_up_while_it_waits() -> None:
    over = anyio.Event()
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 1)

        async def wait() -> None:
            with pytest.raises(AcquireAbandoned):
                await lock.acquire().unless(over.wait)

        async with lock, anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            while not (await lock.info()).queue:
                await lowlevel.checkpoint()
            over.set()
        assert [seen async for seen in locks.list()] == []


async def test_wanted_it_is_as_ever() -> None:
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 1)
        async with lock.acquire().unless(anyio.sleep_forever) as held:
            held.check()
            with pytest.raises(LockTimeout):  # no group of exceptions around it
                await other(lock.acquire(0.01).unless(anyio.sleep_forever))
        assert [seen async for seen in locks.list()] == []


async def other(awaitable: object) -> None:
    """In another task: this one holds the lock."""
    caught: list[BaseException] = []

    async def run() -> None:
        try:
            await awaitable  # type: ignore[misc]
        except LockTimeout as exc:
            caught.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    raise caught[0]


@pytest.mark.parametrize("cancel", [False, True], ids=["over", "cancelled"])
async def test_at_every_point(*, cancel: bool) -> None:
    """Given up, or cancelled, after so many steps: held, or nothing is left."""
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 1)
        outcomes = set()
        for steps in range(30):

            async def later(steps: int = steps) -> None:
                for _ in range(steps):
                    await lowlevel.checkpoint()

            async def stop(scope: anyio.CancelScope) -> None:
                await later()
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                if cancel:
                    tasks.start_soon(stop, tasks.cancel_scope)
                unless = anyio.sleep_forever if cancel else later
                try:
                    held = await lock.acquire().unless(unless)
                except AcquireAbandoned:
                    outcomes.add("given up")
                else:
                    outcomes.add("held")
                    with anyio.CancelScope(shield=True):
                        await held.release()
                tasks.cancel_scope.cancel()
            await lowlevel.checkpoint()
            assert [seen async for seen in locks.list()] == []
        assert "held" in outcomes


async def test_a_connect_that_is_opened_twice_is_two_processes_to_the_store() -> None:
    """A server that forks its workers may have called ``connect`` before."""
    connecting = connect("memory://")
    client_ids = set()
    for _ in range(2):
        async with connecting as locks:
            client_ids.add(locks._session.client.client_id)
    assert len(client_ids) == 2
