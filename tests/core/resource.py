"""One resource with commands of one line, for tests that read as histories."""

from __future__ import annotations

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Granted,
    Release,
    Reply,
    Upgrade,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord, Requester
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import transition

MS, SECOND = 1_000, 1_000_000
LEASE = 10 * SECOND
READ, WRITE = Mode.READ, Mode.WRITE
WALL = 1_700_000_000 * SECOND


class OneLock:
    """One resource. ``woken``: the clients that the last step called, ``pushed``: the
    grant that it pushed.
    """

    semaphore = False

    def __init__(self) -> None:
        self.record: Doorman | None = None
        self.seat: MutexRecord | None = None
        self.now = SECOND
        self.woken: list[str] = []
        self.pushed: Grant | None = None

    def do(self, command: Command) -> Reply:
        """Carry out a command; 1 ms passes before it. The record expires by itself."""
        self.now += MS
        if self.seat and self.seat.expires and self.seat.expires <= self.now:
            self.seat = None
        step = transition(
            *(self.record, self.seat, command, self.now, WALL + self.now),
            semaphore=self.semaphore,
        )
        self.record, self.seat, self.woken = step.record, step.seat, list(step.wakes)
        self.pushed = step.pushed
        return step.reply

    def ask(
        self,
        client_id: str,
        mode: Mode,
        *tickets: str,
        lease: int | None = LEASE,
        lock_delay: int = 0,
        policy: Policy = Policy.FAIR,
        more: int = 0,
        max_waiters: int | None = None,
        following: str = "",
        push: bool = False,
        confirms: bool = False,
    ) -> Reply:
        """Ask and take a queue entry; without tickets the client's name is one."""
        command = ask(
            client_id,
            mode,
            *tickets,
            lease=lease,
            lock_delay=lock_delay,
            policy=policy,
            more=more,
            max_waiters=max_waiters,
            following=following,
            push=push,
            confirms=confirms,
        )
        return self.do(command)

    def attempt(self, ticket: str, mode: Mode, policy: Policy = Policy.FAIR) -> Reply:
        """Ask once without an entry, as ``try_acquire`` and the published calls do."""
        return self.do(Acquire((Claim(ticket, LEASE),), mode, policy))

    def release(self, ticket: str, *then: Acquire, mode: Mode | None = None) -> Reply:
        """End a grant."""
        return self.do(Release(ticket, mode, then))

    def leave(self, client_id: str, mode: Mode, *tickets: str) -> Reply:
        """Withdraw a queue entry and tickets."""
        return self.do(Withdraw(client_id, mode, tickets))

    def wait(self, micros: int) -> None:
        """Let time pass."""
        self.now += micros

    @property
    def holders(self) -> list[str]:
        """The tickets recorded as holding."""
        return [g.ticket for g in (self.record or Doorman()).grants]

    @property
    def state(self) -> Doorman:
        """The stored doorman."""
        return self.record or Doorman()

    @property
    def queue(self) -> list[tuple[str, Mode]]:
        """The queue entries, in order."""
        return [(p.client_id, p.mode) for p in (self.record or Doorman()).queue]


def ask(
    client_id: str,
    mode: Mode,
    *tickets: str,
    lease: int | None = LEASE,
    lock_delay: int = 0,
    policy: Policy = Policy.FAIR,
    more: int = 0,
    max_waiters: int | None = None,
    following: str = "",
    push: bool = False,
    confirms: bool = False,
    waiting: int = 1,
    limit: int = 0,
) -> Acquire:
    """Return an acquire that may queue. ``following``: the next task's ticket."""
    named = tickets or (client_id,)
    return Acquire(
        tuple(Claim(t, lease, lock_delay=lock_delay) for t in named),
        mode,
        policy,
        client_id=client_id,
        may_queue=True,
        more=more,
        waiting=waiting,
        max_waiters=max_waiters,
        push=push,
        following=Claim(following, lease) if following else None,
        confirms=confirms,
        limit=limit,
    )


def granted(reply: Reply) -> bool:
    """Return whether all claims were granted."""
    return isinstance(reply, Granted)


def retry_after(reply: Reply) -> int | None:
    """Return when the store expects a change, by a reply that says to wait."""
    assert isinstance(reply, Waiting), reply
    return reply.retry_after


def down(ticket: str, new: str) -> Downgrade:
    """Return a downgrade."""
    return Downgrade(ticket, Claim(new, LEASE))


def up(ticket: str, new: str, *, may_wait: bool = True) -> Upgrade:
    """Return an upgrade by a client named after the ticket."""
    return Upgrade(ticket, Claim(new, LEASE), client_id=ticket, may_wait=may_wait)


def over(ticket: str, new: str) -> Adopt:
    """Return an adoption."""
    return Adopt(ticket, Claim(new, 2 * LEASE, Requester("h", 7)))


def last(lock: OneLock) -> int:
    """Return the last fence."""
    return (lock.record or Doorman()).last
