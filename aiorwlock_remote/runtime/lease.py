"""A lease: one grant as this process sees it, shared by the loop and the keeper.

It ends once: released, given away, or lost. Whoever finds that out first decides; the
state is guarded by a lock because the keeper lives in its own thread.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from aiorwlock_remote.core.doorman import Grant, Requester
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import local_deadline, renew_at
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import LossReason
from aiorwlock_remote.ports import Clock


class LeaseState(Enum):
    """What became of a grant."""

    HELD = "held"
    RELEASED = "released"
    DETACHED = "detached"
    LOST = "lost"


@value
class LeaseTerms:
    """How long a grant lives and how it is watched over. Seconds.

    ``max_stall``: lost if the event loop hangs for longer. ``max_hold``: lost if held
    for longer, however well it is renewed. ``keep``: renewed in the background.
    """

    lease: float | None
    margin: float | None = None
    max_stall: float | None = None
    max_hold: float | None = None
    keep: bool = True

    @property
    def watched(self) -> bool:
        """Whether somebody has to look after such a grant."""
        for_ever = self.lease is None and self.max_hold is None
        return not for_ever or self.max_stall is not None


class Lease:
    """One grant of this process.

    ``deadline`` is the local time after which it must not be believed any more: counted
    from before the request that got or renewed it was sent, minus a margin.
    ``kept_in``: where the keeper has it until it is looked at again. ``moving``: the
    tickets to which requests under way may have moved it; for the loop to change.
    """

    __slots__ = (
        "_clock",
        "_lock",
        "attempts",
        "deadline",
        "fence",
        "kept_in",
        "lock_delay",
        "mode",
        "moving",
        "on_loss",
        "owner",
        "owner_gone",
        "reason",
        "renew_due",
        "resource",
        "since",
        "state",
        "terms",
        "ticket",
        "who",
    )

    def __init__(
        self,
        resource: Resource,
        grant: Grant,
        terms: LeaseTerms,
        sent_at: float,
        clock: Clock,
    ) -> None:
        self.resource: Resource = resource
        self.ticket: str = grant.ticket
        self.mode: Mode = grant.mode
        self.fence: int = grant.fence
        self.who: Requester = grant.who
        self.lock_delay: int = grant.lock_delay
        self.terms: LeaseTerms = terms
        self.state: LeaseState = LeaseState.HELD
        self.reason: LossReason | None = None
        self.since: float = sent_at
        self.renew_due: float = 0.0
        self.attempts: int = 0
        self.owner: weakref.ref[Any] | None = None
        self.owner_gone: Callable[[weakref.ref[Any]], bool] | None = None
        self.on_loss: Callable[[Lease], None] | None = None
        self.kept_in: set[Lease] | None = None
        self.moving: tuple[str, ...] = ()
        self._clock = clock
        self._lock = threading.Lock()
        self.deadline: float | None = None
        self._anchor(sent_at, terms.lease)

    @property
    def left(self) -> float | None:
        """Seconds to the deadline; None: there is none."""
        return None if self.deadline is None else self.deadline - self._clock.now()

    def renewed(self, sent_at: float, lease: float | None) -> None:
        """The store lets it live ``lease`` from ``sent_at``, or longer."""
        with self._lock:
            if self.state is LeaseState.HELD:
                self._anchor(sent_at, lease)
                self.attempts = 0

    def end(self, state: LeaseState) -> bool:
        """Released or given away by its holder; False if it had ended before."""
        with self._lock:
            if self.state is not LeaseState.HELD:
                return False
            self.state = state
        self._leave_keeper()
        return True

    def lose(self, reason: LossReason) -> bool:
        """Lost; tells ``on_loss`` once. From any thread."""
        with self._lock:
            if self.state is not LeaseState.HELD:
                return False
            self.state, self.reason = LeaseState.LOST, reason
            told = self.on_loss
        self._leave_keeper()
        if told is not None:
            told(self)
        return True

    def gone(self, reason: LossReason) -> None:
        """The store does not have it: lost, unless it may have been moved just now.

        Then whoever moves it is told what became of it.
        """
        if not self.moving:
            self.lose(reason)

    @contextmanager
    def moving_to(self, ticket: str) -> Generator[None, None, None]:
        """Meanwhile a request is under way that may move it."""
        self.moving = (*self.moving, ticket)
        try:
            yield
        finally:
            self.moving = tuple(t for t in self.moving if t != ticket)

    def expired(self) -> bool:
        """Whether the local deadline has passed; if so it is lost for good."""
        if self.deadline is not None and self._clock.now() >= self.deadline:
            self.lose("expired")
        return self.state is LeaseState.LOST

    def abandoned(self) -> bool:
        """Whether nobody is left who could release it."""
        return (
            self.owner is not None
            and self.owner_gone is not None
            and self.owner_gone(self.owner)
        )

    def _leave_keeper(self) -> None:
        kept_in = self.kept_in
        if kept_in is not None:
            kept_in.discard(self)

    def _anchor(self, sent_at: float, lease: float | None) -> None:
        if lease is None:
            self.deadline, self.renew_due = None, math.inf
            return
        until = local_deadline(sent_at, lease, self.terms.margin)
        if self.deadline is None or until > self.deadline:
            self.deadline = until
        self.renew_due = renew_at(sent_at, lease) if self.terms.keep else math.inf
