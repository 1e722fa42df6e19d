"""A task that waits at a gate."""

from __future__ import annotations

from aiorwlock_remote.core.commands import Claim
from aiorwlock_remote.core.doubt import in_doubt
from aiorwlock_remote.core.lane import Waiter
from aiorwlock_remote.core.ticket import Policy
from aiorwlock_remote.pending import Pending


class Visitor(Waiter):
    """A waiter with somebody to wake. ``error``: why it will never get in."""

    __slots__ = ("error", "ready")

    def __init__(
        self, claim: Claim, policy: Policy, max_waiters: int | None = None
    ) -> None:
        """Like ``Waiter``."""
        super().__init__(claim, policy, max_waiters)
        self.ready: Pending[None] = Pending()
        self.error: BaseException | None = None

    @property
    def in_doubt(self) -> bool:
        """Turned away, and granted nonetheless, perhaps: it is to be taken back."""
        return in_doubt(self.error)

    def decide(self) -> None:
        """It got in, or never will: wake it, once."""
        if not self.ready.done:
            self.ready.resolve(None)
