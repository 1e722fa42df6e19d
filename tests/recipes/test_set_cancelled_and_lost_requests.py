"""Mutex sets: cancelled at every await point while answers of the server are lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import BackendUnavailable, LockError
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.mutex_set import Taken, TakeReplies, TakeRequest
from aiorwlock_remote.locks import recipe_factories
from aiorwlock_remote.ports.recipes import MutexSetMembers
from aiorwlock_remote.recipes import MutexSet
from tests.recipes.fix_sets import proxies
from tests.runtime.cancel_at import CancelAt
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("it is the task that is cancelled, whatever the loop"),
]


class Unheard:
    """Loses the first answer that gives a ticket something; refuses to take it back."""

    def __init__(self, members: MutexSetMembers) -> None:
        self._ask = members.ask
        self._withdraw = members.withdraw
        self._given = set[str]()
        self._withdrawn = set[str]()

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        heard: Pending[TakeReplies] = Pending()

        def answered(answer: Pending[TakeReplies]) -> None:
            replies = answer.result()
            both = zip(asks, replies.answers, strict=True)
            given = {ask.ticket for ask, answer in both if isinstance(answer, Taken)}
            if given <= self._given:
                heard.set_result(replies)
            else:
                self._given |= given
                heard.set_exception(BackendUnavailable(what="lost"))

        self._ask(asks, entry_ttl).add_done_callback(answered)
        return heard

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[Reply]:
        if set(tickets) <= self._withdrawn:
            return self._withdraw(places, tickets, lease)
        self._withdrawn.update(tickets)
        refused: Pending[Reply] = Pending()
        refused.set_exception(BackendUnavailable(what="refused"))
        return refused


async def use(pool: MutexSet, way: str, name: str | None) -> None:
    with suppress(LockError):
        if way == "tries":
            held = await pool.try_acquire(name)
            if held is not None:
                await held.release()
            return
        async with pool.acquire(name, timeout=30):
            await checkpoint()


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("way", ["free", "waits", "tries"])
async def test_no_mutex_is_held_by_no_one(
    fresh_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    name: str | None,
    *,
    late: bool,
) -> None:
    # Each answer that is lost costs a poll.
    soon = 0.25
    monkeypatch.setattr(recipe_factories, "REVALIDATE", soon)
    async with (
        proxies(fresh_redis, "a", revalidate_seconds=soon) as pool,
        proxies(fresh_redis, revalidate_seconds=soon) as other,
    ):
        members = pool._acquirer.members
        link = Unheard(members)
        monkeypatch.setattr(members, "ask", link.ask)
        monkeypatch.setattr(members, "withdraw", link.withdraw)
        for k in range(1, 40):
            holder = await other.acquire("a") if way == "waits" else None
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:
                    if holder is not None:
                        group.start_soon(holder.release)
                    cut = CancelAt(use(pool, way, name), k, scope.cancel, late=late)
                    await cut
            async with other.acquire("a", timeout=20):
                pass
            if cut.suspensions < k:
                return
    pytest.fail("it never ends")
