"""The events of a history sorted into one story per resource."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from aiorwlock_remote.testing.events import (
    Access,
    Event,
    Granted,
    Lost,
    Released,
    Releasing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@final
@dataclass(slots=True)
class Timeline:
    """One resource; times by holder."""

    grants: dict[str, Granted] = field(default_factory=dict[str, Granted])
    again: list[Granted] = field(default_factory=list[Granted])
    accesses: list[Access] = field(default_factory=list[Access])
    until: dict[str, float] = field(default_factory=dict[str, float])
    left: dict[str, float] = field(default_factory=dict[str, float])
    lost: dict[str, float] = field(default_factory=dict[str, float])
    confirmed: set[str] = field(default_factory=set[str])

    def end(self, holder: str) -> float:
        """Up to when `holder` certainly held, if it was granted.

        It does so until its last known deadline, even when its process is dead: the
        store has to keep others out, unless a release was on its way.
        """
        left = self.left.get(holder, math.inf)
        if holder in self.confirmed:
            return left
        return min(self.until[holder], left, self.lost.get(holder, math.inf))


def timelines(events: Iterable[Event]) -> dict[str, Timeline]:
    """The stories by resource; `events` may come in any order."""
    stories: defaultdict[str, Timeline] = defaultdict(Timeline)
    for event in events:
        if not isinstance(event, Granted | Access | Releasing | Released | Lost):
            continue  # nobody holds more or less by it
        story, holder = stories[event.resource], event.holder
        if isinstance(event, Granted | Access | Releasing):
            _later(story.until, holder, event.until)
        match event:
            case Granted():
                story.again += [event] if holder in story.grants else []
                story.grants[holder] = event
            case Access():
                story.accesses.append(event)
            case Releasing():
                _earlier(story.left, holder, event.at)
            case Released():
                _earlier(story.left, holder, event.asked_at)
                story.confirmed |= {holder} if event.ok else set()
            case Lost():
                _earlier(story.lost, holder, event.at)
    return dict(stories)


def _later(times: dict[str, float], holder: str, until: int | None) -> None:
    deadline = math.inf if until is None else until
    times[holder] = max(deadline, times.get(holder, deadline))


def _earlier(times: dict[str, float], holder: str, at: int) -> None:
    times[holder] = min(at, times.get(holder, at))
