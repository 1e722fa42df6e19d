"""Options as users give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.options import PolicyName

OnLost = Literal["raise", "flag"] | Callable[[Held], object]
"""What happens when a grant is lost, see ``OptionArgs``."""


class OptionArgs(TypedDict, total=False):
    """What ``connect``, locks and ``acquire`` take alike. Times in seconds.

    ``lease``: how long a grant lives unless it is renewed; 30 by default, at least
    0.2; None never expires. ``policy``: who goes first. ``fair``: False lets a mutex
    pass the queue; a readers-writer lock has none of its own. ``on_lost``:
    ``"raise"`` cancels the body and raises ``LockLost``, ``"flag"`` only sets
    ``held.lost``, a callable gets the ``Held``. ``max_stall``: a loop that hangs for
    longer loses the grant. ``max_hold``: the longest holding time.
    ``margin``: by how much a holder stops before its lease ends. ``slow_wait``: log
    who is in the way after waiting so long. ``max_waiters``: longer queues are refused.
    ``lock_delay``: nobody enters for so long after a grant EXPIRED.
    """

    lease: float | None
    policy: PolicyName
    fair: bool
    on_lost: OnLost
    max_stall: float | None
    max_hold: float | None
    margin: float | None
    slow_wait: float | None
    max_waiters: int | None
    lock_delay: float
