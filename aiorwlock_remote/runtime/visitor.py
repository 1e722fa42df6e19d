"""A task that waits at a gate."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.mode_queue import Waiter
from aiorwlock_remote.core.uncertainty import in_doubt


def _unanswered() -> Pending[None]:
    return Pending()


@dataclass(slots=True, eq=False)
class Visitor(Waiter):
    """A waiter with somebody to wake. ``error``: why it will never get in."""

    ready: Pending[None] = field(default_factory=_unanswered)
    error: BaseException | None = None

    @property
    def in_doubt(self) -> bool:
        """Turned away, and granted nonetheless, perhaps: it is to be taken back."""
        return in_doubt(self.error)

    def decide(self) -> None:
        """It got in, or never will: wake it, once."""
        if not self.ready.done:
            self.ready.resolve(None)
