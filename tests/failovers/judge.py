"""What one failover cost, by the histories of the clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from aiorwlock_remote.testing.checker import Timeline, check_history, timelines
from aiorwlock_remote.testing.history import Access, Event, Granted, Lost, Released

SECOND = 1e9
SAID_BY_THE_STORE = {"expired", "stolen", "forced"}
"""Reasons of a loss before the deadline: the store did not know the grant."""
SLACK = 0.05 * SECOND
"""A loss so shortly before the last known deadline is the end of the lease."""


@dataclass(frozen=True)
class Cost:
    """What was seen from the begin of a failover until the clients had settled.

    Attributes:
        grants: acknowledged to callers.
        forgotten: acknowledged grants that the store gave to another, or did not know,
            before their deadline.
        both: seconds for which two holders relied on one name, at most.
        refused: accesses that the register refused, by the fence.
        ended: grants whose lease ran out because no leader renewed them.
        nobody: the longest time in seconds without a grant of any name.
    """

    grants: int
    forgotten: int
    both: float
    refused: int
    ended: int
    nobody: float


def judge(events: Iterable[Event], begun: int, ended: int) -> Cost:
    """Judge what happened from ``begun`` to ``ended``, in ns of ``history.now()``."""
    kept = [event for event in events if event.at <= ended]
    forgotten = set[str]()
    both = 0.0
    stories = timelines(kept)
    for story in stories.values():
        for first, seconds in _overlaps(story, begun):
            forgotten.add(first)
            both = max(both, seconds)
    recent = [event for event in kept if event.at >= begun]
    losses = [event for event in recent if isinstance(event, Lost)]
    unknown = {each.holder for each in losses if _unknown(stories, each)}
    forgotten |= unknown
    forgotten |= {
        each.holder
        for each in recent
        if isinstance(each, Released) and each.ok is False
    }
    times = sorted(event.at for event in recent if isinstance(event, Granted))
    return Cost(
        grants=len(times),
        forgotten=len(forgotten),
        both=round(both, 3),
        refused=sum(isinstance(e, Access) and e.serial is None for e in recent),
        ended=len({each.holder for each in losses} - forgotten),
        nobody=round(
            max(two - one for one, two in pairwise([begun, *times, ended])) / SECOND, 3
        ),
    )


def fences_gone_back(events: Iterable[Event]) -> int:
    """Count the grants whose fence was not above that of an earlier one."""
    found = check_history(events).violations
    return sum(violation.kind == "fence" for violation in found)


def _overlaps(story: Timeline, begun: int) -> list[tuple[str, float]]:
    """Return the first holder of each two that held together, and for how long."""
    found = list[tuple[str, float]]()
    latest: Granted | None = None
    for new in sorted(story.grants.values(), key=attrgetter("at")):
        end = story.end(new.holder)
        if latest is not None and new.at >= begun:
            seconds = (min(story.end(latest.holder), end) - new.at) / SECOND
            if seconds > 0:
                found.append((latest.holder, seconds))
        if latest is None or end > story.end(latest.holder):
            latest = new
    return found


def _unknown(stories: dict[str, Timeline], loss: Lost) -> bool:
    """Return whether the store said, before the deadline, that the grant is none."""
    deadline = stories[loss.resource].until[loss.holder]
    return loss.reason in SAID_BY_THE_STORE and loss.at < deadline - SLACK
