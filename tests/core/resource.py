"""A resource to be told what to do in one line; for tests that read as stories."""

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
from aiorwlock_remote.core.doorman import Doorman, MutexRecord, Requester
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import transition

MS, SECOND = 1_000, 1_000_000
LEASE = 10 * SECOND
READ, WRITE = Mode.READ, Mode.WRITE
WALL = 1_700_000_000 * SECOND


class Door:
    """One resource. ``woken``: the gates that the last step called."""

    def __init__(self) -> None:
        self.record: Doorman | None = None
        self.seat: MutexRecord | None = None
        self.now = SECOND
        self.woken: list[str] = []

    def do(self, command: Command) -> Reply:
        """Carry out a command; 1 ms passes before it. The seat goes when it ends."""
        self.now += MS
        if self.seat and self.seat.expires and self.seat.expires <= self.now:
            self.seat = None
        step = transition(self.record, self.seat, command, self.now, WALL + self.now)
        self.record, self.seat, self.woken = step.record, step.seat, list(step.wakes)
        return step.reply

    def ask(
        self,
        gate: str,
        mode: Mode,
        *tickets: str,
        lease: int | None = LEASE,
        lock_delay: int = 0,
        policy: Policy = Policy.FAIR,
        more: int = 0,
        max_waiters: int | None = None,
    ) -> Reply:
        """A process asks and takes a place; without tickets its name is one."""
        command = ask(
            gate,
            mode,
            *tickets,
            lease=lease,
            lock_delay=lock_delay,
            policy=policy,
            more=more,
            max_waiters=max_waiters,
        )
        return self.do(command)

    def attempt(self, ticket: str, mode: Mode, policy: Policy = Policy.FAIR) -> Reply:
        """Ask once and take no place: ``timeout=0``, ``try_acquire``, S0's calls."""
        return self.do(Acquire((Claim(ticket, LEASE),), mode, policy))

    def release(self, ticket: str, *then: Acquire, mode: Mode | None = None) -> Reply:
        """End a grant."""
        return self.do(Release(ticket, mode, then))

    def leave(self, gate: str, mode: Mode, *tickets: str) -> Reply:
        """Withdraw a place and tickets."""
        return self.do(Withdraw(gate, mode, tickets))

    def wait(self, micros: int) -> None:
        """Let time pass."""
        self.now += micros

    @property
    def holders(self) -> list[str]:
        """The tickets that are recorded as holding."""
        return [g.ticket for g in (self.record or Doorman()).grants]

    @property
    def queue(self) -> list[tuple[str, Mode]]:
        """The places, in order."""
        return [(p.client_id, p.mode) for p in (self.record or Doorman()).queue]


def ask(
    gate: str,
    mode: Mode,
    *tickets: str,
    lease: int | None = LEASE,
    lock_delay: int = 0,
    policy: Policy = Policy.FAIR,
    more: int = 0,
    max_waiters: int | None = None,
) -> Acquire:
    """An acquire that may queue."""
    named = tickets or (gate,)
    return Acquire(
        tuple(Claim(t, lease, lock_delay=lock_delay) for t in named),
        mode,
        policy,
        client_id=gate,
        may_queue=True,
        more=more,
        max_waiters=max_waiters,
    )


def granted(reply: Reply) -> bool:
    """Whether all that asked got in."""
    return isinstance(reply, Granted)


def told(reply: Reply) -> int | None:
    """When the store expects a change, of an answer that says to wait."""
    assert isinstance(reply, Waiting), reply
    return reply.retry_after


def down(ticket: str, new: str) -> Downgrade:
    """Writer → reader."""
    return Downgrade(ticket, Claim(new, LEASE))


def up(ticket: str, new: str, *, may_wait: bool = True) -> Upgrade:
    """Reader → writer, of a process named after the ticket."""
    return Upgrade(ticket, Claim(new, LEASE), client_id=ticket, may_wait=may_wait)


def over(ticket: str, new: str) -> Adopt:
    """From one owner to another."""
    return Adopt(ticket, Claim(new, 2 * LEASE, Requester("h", 7)))


def last(door: Door) -> int:
    """The last fence."""
    return (door.record or Doorman()).last
