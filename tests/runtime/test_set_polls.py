"""A mutex set is polled for as long as a task waits, and for all targets at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply, Withdrawn
from aiorwlock_remote.core.mutex_set import (
    ANY_MEMBER,
    Busy,
    SetMember,
    TakeReplies,
    TakeRequest,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.event_loop import current_event_loop
from aiorwlock_remote.runtime.lease import AcquireRequest, LeaseTerms
from aiorwlock_remote.runtime.set_acquirer import SetAcquirer
from aiorwlock_remote.runtime.store_client import StoreClient


class FakeMembers:
    """A set whose mutexes are taken."""

    def __init__(self, _: Callable[[str | None], object]) -> None:
        self.asked: list[list[str]] = []
        self.looked = asyncio.Event()

    def ask(self, asks: Sequence[TakeRequest], _: float) -> Pending[TakeReplies]:
        self.asked.append([ask.target for ask in asks])
        self.looked.set()
        replies: Pending[TakeReplies] = Pending()
        replies.set_result(TakeReplies(tuple(Busy(None) for _ in asks)))
        return replies

    def withdraw(self, *_: object) -> Pending[Reply]:
        withdrawn: Pending[Reply] = Pending()
        withdrawn.set_result(Withdrawn())
        return withdrawn

    def watch(self) -> None: ...

    def unwatch(self) -> None: ...


class Keeper:
    """Renews nothing: no task gets a mutex."""

    def ready(self, _: LeaseTerms) -> None: ...


@pytest.mark.asyncio
async def test_polls_go_on_after_every_task_was_cancelled() -> None:
    """As soon as another task waits."""
    client = StoreClient(current_event_loop(), StoreSettings("here"))
    keeper: Any = Keeper()
    client.keeper = keeper
    opened: list[FakeMembers] = []

    def open_members(wake: Callable[[str | None], object]) -> Any:  # noqa: ANN401
        opened.append(FakeMembers(wake))
        return opened[0]

    acquirer = SetAcquirer("proxies", client, open_members, 3600)
    (members,) = opened

    async def wait(name: str) -> None:
        member, terms = SetMember("proxies", name), LeaseTerms(60.0)
        await acquirer.acquire(AcquireRequest(member, Mode.WRITE, Policy.FAIR, terms))

    tasks: list[asyncio.Task[None]] = []
    for name in ("a", ANY_MEMBER):
        members.looked.clear()
        tasks.append(asyncio.create_task(wait(name)))
        await members.looked.wait()
    others = asyncio.all_tasks() - {asyncio.current_task(), *tasks}
    assert others, "the timer sleeps"
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for queue in acquirer._queues.values():
        queue._writers.due = 0.0  # its time has come
    members.looked.clear()
    tasks.append(asyncio.create_task(wait("a")))
    await members.looked.wait()
    assert members.asked == [["a"], [ANY_MEMBER], ["a", ANY_MEMBER]]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not acquirer._queues
