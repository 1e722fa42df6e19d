"""Calls that are cancelled, lost or late: nothing is leaked, nothing is guessed."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from aiorwlock_remote import BackendError, Locks, connect
from aiorwlock_remote.core.commands import (
    Granted,
    Release,
    Released,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.oracle.programs import seats
from tests.cas.tables import LEASE, ORDER, acquire, opened
from tests.renewals import renewed
from tests.servers.oracle.client import OracleUser

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("asyncio does it")]

SWAP = "n_record"  # in no other statement


async def freed(user: OracleUser, locks: Locks) -> None:
    """Nothing is held, and the lock can be had at once."""
    with anyio.fail_after(20):
        async with locks.mutex("order", 42).acquire(timeout=10):
            pass
    assert seats(user) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_acquire_is_cancelled_on_its_way(user: OracleUser, when: str) -> None:
    async with connect(user.url) as locks, connect(user.url) as others:
        stop = user.rule(when, "stop", SWAP)  # type: ignore[arg-type]
        async with anyio.create_task_group() as group:

            async def enter() -> None:
                await locks.mutex("order", 42).acquire(timeout=0)

            group.start_soon(enter)
            await anyio.to_thread.run_sync(stop.reached)
            group.cancel_scope.cancel()
            stop.let_go()
        await freed(user, others)


@pytest.mark.parametrize("session", ["drop", "kill", "silence"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_acquire_whose_answer_is_lost(
    user: OracleUser, when: str, session: str
) -> None:
    """It holds, or nothing does; who asks again gets the truth."""
    async with opened(f"{user.url}?call_timeout=1") as store:
        user.rule(when, session, SWAP)  # type: ignore[arg-type]
        with pytest.raises(BackendUnavailable):
            await store.step(ORDER, acquire("t1"))
        user.well()
        taken = Withdraw("g", Mode.WRITE, ("t1",))
        assert isinstance(await store.step(ORDER, taken), Withdrawn)
        assert seats(user) == []
        assert isinstance(await store.step(ORDER, acquire("t2")), Granted)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_acquire_that_is_repeated(user: OracleUser, when: str) -> None:
    """By its ticket: the same grant, or the first; and as old as it is."""
    async with opened(user.url) as store:
        user.rule(when, "drop", SWAP)  # type: ignore[arg-type]
        with pytest.raises(BackendUnavailable):
            await store.step(ORDER, acquire("t1"))
        await anyio.sleep(0.05)
        reply = await store.step(ORDER, acquire("t1"))
        assert isinstance(reply, Granted)
        age = reply.now - reply.grants[0].since
        if when == "after":
            assert age >= 50_000
        assert reply.grants[0].expires is not None
        assert reply.grants[0].expires >= reply.now + LEASE - age


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_release_whose_answer_is_lost(user: OracleUser, when: str) -> None:
    async with opened(user.url) as store:
        await store.step(ORDER, acquire("t1"))
        user.rule(when, "drop", SWAP)  # type: ignore[arg-type]
        with pytest.raises(BackendUnavailable):
            await store.step(ORDER, Release("t1"))
        reply = await store.step(ORDER, Release("t1"))
        assert isinstance(reply, Released)
        assert reply.held == (when == "before")
        assert seats(user) == []


async def test_a_call_that_was_broken_into_before(user: OracleUser) -> None:
    """ORA-01013 of an earlier call: nobody knows what became of this one."""
    async with opened(user.url) as store:
        while len(user.sessions()) < 2:  # noqa: ASYNC110 - the keeper's, from outside
            await anyio.sleep(0.01)
        user.rule("before", "error", SWAP, code=1013)
        with pytest.raises(BackendUnavailable) as caught:
            await store.step(ORDER, acquire("t1"))
        assert not caught.value.nothing_done
        sessions = set(user.sessions())
        assert isinstance(await store.step(ORDER, acquire("t1")), Granted)
        assert set(user.sessions()) - sessions, "it went on over the same connection"


async def test_errors_that_are_announced(user: OracleUser) -> None:
    async with opened(user.url) as store:
        user.late_errors()
        user.rule("before", "error", SWAP, code=54)
        with pytest.raises(BackendUnavailable) as caught:
            await store.step(ORDER, acquire("t1"))
        assert caught.value.nothing_done
        assert isinstance(await store.step(ORDER, acquire("t1")), Granted)


@pytest.mark.parametrize("code", [60, 8177])
async def test_another_transaction_came_first(user: OracleUser, code: int) -> None:
    """A deadlock, or a session that is SERIALIZABLE: what may be is asked again."""
    async with opened(user.url) as store:
        user.rule("before", "error", SWAP, code=code, times=2)
        assert isinstance(await store.step(ORDER, acquire("t1")), Granted)
        user.rule("before", "error", "doormans", code=code, times=3)
        assert (await store.look(ORDER)).record.grants
        for text in ("SELECT", "DELETE"):
            user.rule("before", "error", text, code=code, times=3)
        assert [found.resource async for found in store.scan(None)] == [ORDER]
        await store.forget(60.0)


async def test_a_waiter_survives_lost_connections(user: OracleUser) -> None:
    first = connect(user.url, lease=2)
    async with first as locks, connect(user.url) as others:
        held = await locks.mutex("order", 42).acquire()
        entered = anyio.Event()
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                async with others.mutex("order", 42):
                    entered.set()

            group.start_soon(wait)
            while not (await locks.mutex("order", 42).info()).queue:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            for _ in range(5):
                user.drop()
                await anyio.sleep(0.05)
            with suppress(BackendError):  # then its lease ends
                await held.release()
            with anyio.fail_after(20):
                await entered.wait()


@pytest.mark.usefixtures("renewed_often")
async def test_a_silent_server_ends_no_lease(user: OracleUser) -> None:
    """Renewals are tried again until the deadline."""
    hurried = connect(f"{user.url}?call_timeout=1.5")
    async with hurried as locks, locks.mutex("order", 42) as held:
        await renewed(held)
        user.hole("both")
        await anyio.sleep(2.5)
        user.well()
        await renewed(held)
