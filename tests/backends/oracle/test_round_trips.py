"""What a step costs, counted at the server."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.core.commands import Granted
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.ports import Renewal
from tests.cas.tables import LEASE, acquire, opened, orders
from tests.servers.oracle.client import OracleUser

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("counts are counts"),
    pytest.mark.usefixtures("patient_steps"),
]


def trips(user: OracleUser) -> int:
    """Since they were forgotten."""
    return len(user.calls())


@pytest.mark.parametrize("profile", ["12.2", "19c", "23ai"])
async def test_a_mutex_is_one_and_one(user: OracleUser, profile: str) -> None:
    async with connect(user.at(profile).url) as locks:
        user.forget_calls()
        held = await locks.mutex("order", 1).acquire()
        assert trips(user) == 1
        await held.release()
        assert trips(user) == 2
        async with locks.mutex("order", 1):  # a name that was used before
            pass
        assert trips(user) == 4


@pytest.mark.parametrize("mode", ["reader", "writer"])
async def test_a_readers_writer_lock_is_one_and_one(
    user: OracleUser, mode: str
) -> None:
    async with connect(user.url) as locks:
        user.forget_calls()
        lock = getattr(locks.rwlock("catalog", 7), mode)
        held = await lock.acquire()
        assert trips(user) == 1
        await held.release()
        assert trips(user) == 2


async def test_a_lock_used_by_another_process_costs_one_round_trip_more(
    user: OracleUser,
) -> None:
    async with connect(user.url) as locks, connect(user.url) as others:
        async with locks.mutex("order", 1):
            pass
        user.forget_calls()
        async with others.mutex("order", 1):
            assert trips(user) == 2


async def test_a_hundred_renewals_are_two_at_most(user: OracleUser) -> None:
    async with opened(user.url) as store:
        names = orders(100)
        for number, name in enumerate(names):
            reply = await store.step(name, acquire(f"t{number}"))
            assert isinstance(reply, Granted)
        renewer = store.renewer()
        batch = [Renewal(name, f"t{n}", LEASE) for n, name in enumerate(names)]

        def renew() -> int:
            user.forget_calls()
            outcomes = renewer.renew(batch, 20.0)
            assert all(isinstance(outcome, Grant) for outcome in outcomes)
            return trips(user)

        assert await anyio.to_thread.run_sync(renew) <= 2
        assert await anyio.to_thread.run_sync(renew) == 1
        renewer.close()
