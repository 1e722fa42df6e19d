"""What a grant tells of itself; no I/O."""

from __future__ import annotations

from datetime import UTC, datetime

from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.errors import LockLost, LossReason, NotOwner
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.lease import Lease, State


class GrantView:
    """The part of a ``Held`` that only looks."""

    __slots__ = ("_clock", "_lease", "_wall")

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        self._wall = clock.wall()

    @property
    def lease(self) -> Lease:
        """The grant as the runtime sees it; not for users."""
        return self._lease

    @property
    def fence(self) -> int:
        """The phase number: hand it to the protected resource with every access.

        A resource that refuses numbers smaller than the highest it has seen (on reads
        too) is safe from holders that were paused past their lease.
        """
        return self._lease.fence

    @property
    def mode(self) -> str:
        """``"read"`` or ``"write"``."""
        return str(self._lease.mode)

    @property
    def resource(self) -> str:
        """``type/id``."""
        return self._lease.resource.label

    @property
    def holder(self) -> str:
        """The public name of this grant: 12 hex digits, safe to log."""
        return holder_of(self._lease.ticket)

    @property
    def acquired_at(self) -> datetime:
        """When it was granted, by this host's clock."""
        return datetime.fromtimestamp(self._wall, UTC)

    @property
    def expires_in(self) -> float | None:
        """Seconds it may be believed without a renewal; None: it never expires."""
        if self._lease.deadline is None:
            return None
        return self._lease.deadline - self._clock.now()

    @property
    def lost(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        self._lease.expired()
        return self._lease.reason

    @property
    def valid(self) -> bool:
        """Whether ``check()`` would pass."""
        return not self._lease.expired() and self._lease.state is State.HELD

    def check(self) -> None:
        """Make sure that it is still held; no I/O.

        Raises:
            LockLost: its lease may have run out, or it is known to be gone.
            NotOwner: released, moved or given away.
        """
        if self._lease.expired():
            raise self.loss()
        if self._lease.state is not State.HELD:
            raise NotOwner(resource=self.resource, action="use")

    def loss(self) -> LockLost:
        """The error that says how it was lost."""
        return LockLost(
            reason=self._lease.reason or "expired",
            resource=self.resource,
            mode=self.mode,
            fence=self.fence,
        )

    def __repr__(self) -> str:
        state = self._lease.reason or self._lease.state.value
        return f"<Held {self.resource} {self.mode} fence={self.fence} {state}>"
