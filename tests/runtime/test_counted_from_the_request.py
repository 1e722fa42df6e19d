"""Belief in a grant counts from its request, never from the reply.

Otherwise two clients believe in the same lock: one for as long as its reply was on its
way after the store's lease, which counts from the step, has ended. Each place that
starts or prolongs a lease is tested with a reply that took ``DELAY``.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Command,
    Downgrade,
    Release,
    Renew,
    Upgrade,
)
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.locks.connect import open_in
from aiorwlock_remote.locks.held import share_ticket
from aiorwlock_remote.runtime.event_loop import SystemClock, current_event_loop
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.testing.conformance.actors import TaskActor, TaskActors
from aiorwlock_remote.testing.faults import Fate
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = pytest.mark.anyio

LEASE = 60.0
WINDOW = 50.0
"""Seconds for which a pushed grant lasts unless it is confirmed."""
DELAY = 6.0
"""Seconds by the client's clock from the sending of a request to its reply."""
PATIENCE = 30
NAME = "order", 1


class Client:
    """A client whose clock goes ahead while its next request is answered."""

    locks: Locks
    rival: Locks
    actors: TaskActors
    held: object
    """What a test holds, so that it is not dropped."""

    def __init__(self, memory: FaultyMemory) -> None:
        self.memory = memory
        self.ahead = 0.0
        self.asked_at = 0.0
        self._clock = SystemClock()

    def now(self) -> float:
        return self._clock.now() + self.ahead

    def wall(self) -> float:
        return self._clock.wall() + self.ahead

    def delay(self, kind: type[Command], *, confirms: bool = False) -> None:
        """Let the reply to the next command of this kind take ``DELAY``."""
        self.asked_at = 0.0

        def fate(command: Command) -> Fate:
            confirmed = isinstance(command, Acquire) and command.confirms
            if isinstance(command, kind) and confirmed is confirms:
                self.asked_at = self.now()
                self.ahead += DELAY
                self.memory.link.fate = lambda _: Fate.PASS
            return Fate.PASS

        self.memory.link.fate = fate

    def keep_confirmations(self) -> None:
        """Let the reply to the next confirmation wait."""

        def fate(command: Command) -> Fate:
            if isinstance(command, Acquire) and command.confirms:
                self.memory.link.hold_back = True
            return Fate.PASS

        self.memory.link.fate = fate

    def leases(self) -> list[Lease]:
        """Those of the client."""
        return self.locks._session.leases()

    def check(self) -> None:
        """Fail unless the client believes in its leases from when it asked."""
        assert self.asked_at, "the request was never sent"
        for lease in self.leases():
            # A part is kept back, so it is not the very end.
            assert lease.deadline is not None
            assert 0.9 * LEASE < lease.deadline - self.asked_at < LEASE


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    memory = FaultyMemory(poll_policy=PollPolicy(claim_window=WINDOW, pushes=True))
    client = Client(memory)
    connecting = connect(memory, lease=LEASE)
    async with (
        await open_in(current_event_loop(client), connecting) as client.locks,
        memory.connect_rival(lease=LEASE) as client.rival,
        anyio.create_task_group() as tasks,
    ):
        client.actors = TaskActors(tasks, PATIENCE)
        yield client
        await client.actors.finish()


Way = Callable[[Client], Awaitable[object]]


async def asked_alone(client: Client) -> None:
    client.delay(Acquire)
    await client.actors.enters(client.locks.mutex(*NAME))


async def asked_once(client: Client) -> None:
    client.delay(Acquire)
    client.held = await client.locks.mutex(*NAME).try_acquire()


async def one_of_several(client: Client) -> None:
    client.delay(Acquire)
    each = client.locks.mutex(*NAME), client.locks.mutex("order", 2)
    client.held = await client.locks.multi(*each)


async def waited_for(client: Client) -> None:
    """The reply that grants is that to a waiter's later request."""
    other = await client.actors.enters(client.rival.rwlock(*NAME).writer)
    actor = await client.actors.queues(client.locks.rwlock(*NAME).reader)
    client.delay(Acquire)
    await other.hand_over_to(actor)


async def passed_on_by_a_release(client: Client) -> None:
    """The reply to the release of one task grants the lock to another."""
    lock = client.locks.mutex(*NAME)
    first, second = await client.actors.enters(lock), await client.actors.asks(lock)
    await anyio.wait_all_tasks_blocked()
    client.delay(Release)
    await first.hand_over_to(second)


async def confirmed_inside(client: Client) -> None:
    """The same when its task holds the lock already."""
    other = await client.actors.enters(client.rival.mutex(*NAME))
    actor = await client.actors.queues(client.locks.mutex(*NAME))
    client.keep_confirmations()
    await other.hand_over_to(actor)
    client.asked_at, client.ahead = client.now(), client.ahead + DELAY
    client.memory.link.let_through()
    await client.actors.until(lambda: not client.leases()[0].pushed)


async def confirmed(client: Client) -> None:
    """The reply to the confirmation of a grant that came by a message."""
    other = await client.actors.enters(client.rival.mutex(*NAME))
    actor = await client.actors.queues(client.locks.mutex(*NAME))
    client.delay(Acquire, confirms=True)
    await other.hand_over_to(actor)
    await client.actors.until(lambda: not client.leases()[0].pushed)


async def extended(client: Client) -> None:
    client.held = held = await client.locks.mutex(*NAME).acquire()
    client.ahead += LEASE / 3
    client.delay(Renew)
    await held.extend()


async def upgraded(client: Client) -> None:
    held = await client.locks.rwlock(*NAME).reader.acquire()
    client.delay(Upgrade)
    client.held = await held.upgrade()


async def downgraded(client: Client) -> None:
    held = await client.locks.rwlock(*NAME).writer.acquire()
    client.delay(Downgrade)
    client.held = await held.downgrade()


async def adopted(client: Client) -> None:
    ticket = (await client.locks.mutex(*NAME).acquire()).detach()
    client.delay(Adopt)
    client.held = await client.locks.adopt(ticket)


async def shared(client: Client) -> None:
    theirs = await client.rival.mutex(*NAME).acquire()
    client.delay(Renew)
    client.held = await client.locks.adopt(share_ticket(theirs)), theirs


@pytest.mark.parametrize(
    "way",
    [
        *(asked_alone, asked_once, one_of_several, waited_for),
        *(
            passed_on_by_a_release,
            confirmed,
            confirmed_inside,
            extended,
            upgraded,
            downgraded,
        ),
        *(adopted, shared),
    ],
    ids=lambda way: str(way.__name__),
)
async def test_a_lease_counts_from_its_request(client: Client, way: Way) -> None:
    """Whatever brings it or prolongs it."""
    await way(client)
    client.check()
    for lease in client.leases():
        assert lease.renew_due < client.asked_at + LEASE / 2


@pytest.mark.usefixtures("renewed_often")
async def test_a_renewal_in_the_background_counts_from_its_request(
    client: Client,
) -> None:
    """Of the keeper's thread."""
    over = threading.Event()

    def delay(*_: object) -> None:
        if client.asked_at:
            over.wait(PATIENCE)
        client.asked_at = client.now()
        client.ahead += DELAY

    client.memory.link.before_renewal = delay
    held = await client.locks.mutex(*NAME).acquire()
    begin = client.leases()[0].deadline
    try:
        await client.actors.until(lambda: client.leases()[0].deadline != begin)
        client.check()
    finally:
        over.set()
    await held.release()


async def known_as_it_queued(client: Client) -> TaskActor:
    """Return who has the lock when the client's last task waits for it."""
    other = await client.actors.enters(client.rival.mutex(*NAME))
    client.delay(Acquire)
    await client.actors.queues(client.locks.mutex(*NAME))
    return other


async def known_by_a_release(client: Client) -> TaskActor:
    """The release of one task is answered while another one waits."""
    lock, actors = client.locks.mutex(*NAME), client.actors
    first = await actors.enters(lock)
    other = await actors.queues(client.rival.mutex(*NAME))
    await actors.queues(lock)
    client.delay(Release)
    await first.hand_over_to(other)
    return other


async def known_by_a_grant(client: Client) -> TaskActor:
    """A message lets one task in, and the reply to its confirmation places another."""
    lock, actors = client.locks.mutex(*NAME), client.actors
    other = await actors.enters(client.rival.mutex(*NAME))
    first = await actors.queues(lock)
    await actors.asks(lock)
    client.delay(Acquire, confirms=True)
    await other.hand_over_to(first)
    await actors.queue_has(lock, 1)
    return first


@pytest.mark.parametrize(
    "learned",
    [known_as_it_queued, known_by_a_release, known_by_a_grant],
    ids=lambda learned: str(learned.__name__),
)
async def test_what_a_message_grants_counts_from_an_earlier_request(
    client: Client, learned: Callable[[Client], Awaitable[TaskActor]]
) -> None:
    """The end of a pushed grant is one of the store's clock, and an earlier reply tells
    that clock's time when its request was sent, not when the reply came.
    """
    holder, link = await learned(client), client.memory.link
    assert client.asked_at
    client.keep_confirmations()
    seen = await client.rival.mutex(*NAME).info()
    if learned is known_by_a_grant:  # a release would tell the time as well
        await client.rival.force_release(seen, reason="to pass it on")
    else:
        await holder.leave()
    await client.actors.until(lambda: any(one.pushed for one in client.leases()))
    (lease,) = [one for one in client.leases() if one.pushed]
    assert lease.deadline is not None
    assert lease.deadline < client.now() - DELAY + WINDOW
    link.let_through()
    holder.scope.cancel()
