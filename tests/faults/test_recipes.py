"""``lead`` and ``once`` on real stores: out of reach, and cancelled at every point."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, LockLost, Locks, connect
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.faults.store_outages import Outage
from tests.runtime.cut_off import Cut, Mine, by_scope, natively

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

DAY = 86400.0
PATIENCE = 60.0


async def nothing() -> None:
    await checkpoint()


def logged(caplog: pytest.LogCaptureFixture, event: str) -> Callable[[], bool]:
    return lambda: any(one.getMessage().startswith(event) for one in caplog.records)


async def test_once_while_the_store_is_down_at_the_start(
    site: tuple[str, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    url, outage = site
    async with connect(url) as locks:
        with outage():
            waiting = asyncio.ensure_future(locks.once("start", nothing, period=DAY))
            await wait_until(logged(caplog, "once_waits_for_store"), PATIENCE)
        assert await asyncio.wait_for(waiting, PATIENCE)
        assert not await locks.once("start", nothing, period=DAY)
    lines = [one for one in caplog.records if one.name == "aiorwlock_remote.once"]
    assert len(lines) == 1


async def test_once_while_the_store_goes_down_in_the_middle(
    site: tuple[str, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    """The end is recorded when the store is back: the lock is held until then."""
    url, outage = site
    began, may_end = asyncio.Event(), asyncio.Event()

    async def job() -> None:
        began.set()
        await may_end.wait()

    async with connect(url) as locks:
        call = locks.once("middle", job, period=DAY, at_most=PATIENCE)
        running = asyncio.ensure_future(call)
        await began.wait()
        with outage():
            may_end.set()
            await wait_until(logged(caplog, "once_waits_for_store"), PATIENCE)
        assert await asyncio.wait_for(running, PATIENCE)
        async with connect(url) as others:
            await wait_until(lambda: _is_free(others, "once", "middle"), PATIENCE)
            assert not await others.once("middle", nothing, period=DAY)


async def _is_free(locks: Locks, kind: str, name: str) -> bool:
    return not await locks.mutex(kind, name).locked()


async def test_a_leader_is_deposed_and_elected_again(
    site: tuple[str, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    """In one process: the outage outlasts the lease, and has one line in the log."""
    url, outage = site
    async with (
        connect(url) as locks,
        locks.leader("outage", lease=1) as leader,
    ):
        first = (await leader.elected()).fence
        with outage():
            await wait_until(lambda: not leader.is_leader, PATIENCE)
            await wait_until(logged(caplog, "leader_waits_for_store"), PATIENCE)
        with anyio.fail_after(PATIENCE):
            assert (await leader.elected()).fence > first
    lines = [one for one in caplog.records if one.name == "aiorwlock_remote.leader"]
    assert len(lines) == 1


@pytest.mark.parametrize("cut", [by_scope, natively(1)], ids=["scope", "task"])
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
async def test_cancelled_at_every_point(
    site: tuple[str, Outage], cut: Cut, *, late: bool
) -> None:
    """Afterwards both locks are free, and a job that did not begin may be run."""
    url, _ = site
    began: list[str] = []

    def history(locks: Locks, name: str) -> Coroutine[Any, Any, None]:
        async def job() -> None:
            began.append(name)
            await checkpoint()

        async def work(held: Held) -> None:
            held.check()
            await checkpoint()

        async def both() -> None:
            await locks.once(name, job, period=DAY)
            await locks.leader(name).lead(work)

        return both()

    async with connect(url) as locks, connect(url) as others:
        for k in range(1, 100):
            name = f"point {k}"
            outcome = await cut(history(locks, name), k, late=late)
            assert outcome.error is None
            # What a cancelled request was granted is withdrawn behind it; the mark of a
            # period before the lock of its job.
            for kind in ("once", "leader"):
                held = await others.mutex(kind, name).acquire(timeout=PATIENCE)
                await held.release()
            assert await others.once(name, nothing, period=DAY) is (name not in began)
            if not outcome.cancelled:
                break
        else:
            pytest.fail("it has more suspensions than that")


async def test_a_retry_may_follow_at_once(site: tuple[str, Outage]) -> None:
    url, _ = site

    async def failing() -> None:
        raise Mine

    async with connect(url) as locks, connect(url) as others:
        for machine in (locks, others):
            with pytest.raises(Mine):
                await machine.once("again", failing, period=DAY, retry=True)
        assert await locks.once("again", nothing, period=DAY, retry=True)
        assert not await others.once("again", nothing, period=DAY, retry=True)


async def test_a_leader_whose_lock_is_broken(site: tuple[str, Outage]) -> None:
    """By ``force_release``: it stands by again, and is elected again."""
    url, _ = site
    async with connect(url) as locks, connect(url) as others:
        fences: list[int] = []

        async def work(held: Held) -> None:
            fences.append(held.fence)
            if len(fences) == 1:
                async for seen in others.list("leader"):
                    await others.force_release(seen, reason="test")
                with pytest.raises(LockLost):
                    await held.extend()
                await anyio.sleep_forever()

        with anyio.fail_after(PATIENCE):
            await locks.leader("broken", lease=1).lead(work)
        assert fences == sorted(set(fences))
        assert len(fences) == 2
