"""Checker that decides from a history whether the locks kept their promises.

One pass and a few sorts: fast enough for demos and tests of any length. The checker
does not know what a store did inside, so it reports only what no correct lock can
explain. ``tests/judge`` has a second, independent checker, for linearizability: it
finds more, and takes too long for long histories.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, final

from aiorwlock_remote.testing.history import (
    Access,
    Event,
    Granted,
    Lost,
    Released,
    Releasing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator


@final
@dataclass(slots=True)
class Timeline:
    """The events of one resource, by holder; times are nanoseconds of ``now()``.

    ``again``: grants to a holder that already had one. ``until``: latest deadline.
    ``left``: time of the release call. ``lost``: time when the holder learned its loss.
    ``confirmed``: holders whose release the store confirmed.
    """

    grants: dict[str, Granted] = field(default_factory=dict[str, Granted])
    again: list[Granted] = field(default_factory=list[Granted])
    accesses: list[Access] = field(default_factory=list[Access])
    until: dict[str, float] = field(default_factory=dict[str, float])
    left: dict[str, float] = field(default_factory=dict[str, float])
    lost: dict[str, float] = field(default_factory=dict[str, float])
    confirmed: set[str] = field(default_factory=set[str])

    def end(self, holder: str) -> float:
        """Return the time (ns of ``now()``) until which the holder surely had the lock.

        With a confirmed release: when that release began. Otherwise the earliest of its
        last deadline, the start of a release, and the time when it learned of a loss.
        """
        # Even a dead holder holds until its last known deadline: the store has to keep
        # others out, unless a release was on its way.
        left = self.left.get(holder, math.inf)
        if holder in self.confirmed:
            return left
        return min(self.until[holder], left, self.lost.get(holder, math.inf))


def timelines(events: Iterable[Event]) -> dict[str, Timeline]:
    """Sort events, in any order, into one ``Timeline`` under each resource's name."""
    stories: defaultdict[str, Timeline] = defaultdict(Timeline)
    for event in events:
        if not isinstance(event, Granted | Access | Releasing | Released | Lost):
            continue  # such events change no grant
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


ViolationKind = Literal["exclusion", "fence", "isolation", "garbage"]


@final
@dataclass(frozen=True, slots=True)
class Violation:
    """Value object: one broken promise of the locks, described in ``text``.

    ``exclusion``: two grants at the same time, one of them a writer's. ``fence``: a
    later grant has a smaller fence, or an equal one although one of the two is a
    writer's. ``isolation``: between two accesses by one grant, the resource that checks
    fences accepted an access by a second grant, although the two exclude each other.
    ``garbage``: the history is contradictory.
    """

    kind: ViolationKind
    resource: str
    text: str


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of ``check_history``; ``wait_p50``, ``wait_p99``: ms from ask to grant."""

    grants: int
    wait_p50: float
    wait_p99: float
    # Accesses the protected resource accepted.
    accesses: int
    # Accesses it refused: of stale holders that the fence kept out.
    refused: int
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """True if no promise was broken."""
        return not self.violations


def check_history(events: Iterable[Event]) -> Verdict:
    """Return the broken promises and waiting times in the events (in any order)."""
    stories = timelines(events)
    violations = [
        Violation(kind, resource, text)
        for resource, story in sorted(stories.items())
        for kind, check in _CHECKS
        for text in check(story)
    ]
    granted = [g for story in stories.values() for g in story.grants.values()]
    accesses = [a for story in stories.values() for a in story.accesses]
    waits = [g.at - g.asked_at for g in granted] or [0]
    refused = sum(a.serial is None for a in accesses)
    return Verdict(
        grants=len(granted),
        wait_p50=quantile(waits, 0.5) / 1e6,
        wait_p99=quantile(waits, 0.99) / 1e6,
        accesses=len(accesses) - refused,
        refused=refused,
        violations=tuple(violations),
    )


def quantile(times: Collection[float], part: float) -> float:
    """Return the time that the share ``part`` (0 to 1) of the times do not exceed."""
    return sorted(times)[max(0, math.ceil(len(times) * part) - 1)]


# ----------------------------------------------------------------- the checks


def _exclusion(story: Timeline) -> Iterator[str]:
    # Sweep over the grants: each must begin after the last excluding one has ended.
    # Of the grants so far, and of the writers among them, the one that ends last.
    last: Granted | None = None
    writer: Granted | None = None
    for new in sorted(story.grants.values(), key=attrgetter("at")):
        end = story.end(new.holder)
        # The grant ended before it was reported, so it excluded no other.
        if end <= new.at:
            continue
        other = last if new.mode == "W" else writer
        if other is not None and story.end(other.holder) > new.at:
            yield (
                f"{_shown(new)} entered at {_seconds(new.at)}, {_shown(other)} held"
                f" from {_seconds(other.at)} to {_seconds(story.end(other.holder))}"
            )
        if last is None or end > story.end(last.holder):
            last = new
        if new.mode == "W" and (writer is None or end > story.end(writer.holder)):
            writer = new


def _fence(story: Timeline) -> Iterator[str]:
    shown = set[str]()
    for new, old in chain(_asked_after(story), _entered_after(story)):
        shared = new.mode == old.mode == "R"
        behind = new.fence < old.fence or (new.fence == old.fence and not shared)
        if behind and new.holder not in shown:
            shown.add(new.holder)
            yield f"{_shown(new)} came after {_shown(old)}"


def _asked_after(story: Timeline) -> Iterator[tuple[Granted, Granted]]:
    # Pair each grant with the highest fence granted before that grant was asked for.
    granted = sorted(story.grants.values(), key=attrgetter("at"), reverse=True)
    high: Granted | None = None
    for new in sorted(story.grants.values(), key=attrgetter("asked_at")):
        while granted and granted[-1].at < new.asked_at:
            high = _higher(high, granted.pop())
        if high is not None:
            yield new, high


def _entered_after(story: Timeline) -> Iterator[tuple[Granted, Granted]]:
    # Pair each grant with the highest fence among earlier grants that exclude it. The
    # two may have been asked for at the same time, as waiters are. Both certainly held,
    # and cannot have held together, so their order is known.
    high: Granted | None = None
    writer: Granted | None = None
    for new in sorted(story.grants.values(), key=attrgetter("at")):
        if story.end(new.holder) <= new.at:
            continue
        old = high if new.mode == "W" else writer
        if old is not None:
            yield new, old
        high = _higher(high, new)
        if new.mode == "W":
            writer = _higher(writer, new)


def _higher(one: Granted | None, two: Granted) -> Granted:
    # Of equal fences a writer's counts, which is the stricter.
    if one is None or (two.fence, two.mode) > (one.fence, one.mode):
        return two
    return one


def _isolation(story: Timeline) -> Iterator[str]:
    # Nothing may change between the accesses of one holder. Accesses of others are
    # counted, not searched: positions and running sums give their number, whatever the
    # length of the history.
    accepted = _accepted(story)
    writes = [0, *accumulate(access.mode == "W" for access in accepted)]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, access in enumerate(accepted):
        places[access.holder].append(place)
    for own in places.values():
        first, last = own[0], own[-1]
        if accepted[first].mode == "W":
            strangers = last - first + 1 - len(own)
        else:
            strangers = writes[last + 1] - writes[first]
        if strangers:
            between = f"{accepted[first].serial} and {accepted[last].serial}"
            yield f"{_shown(accepted[first])}: {strangers} foreign between {between}"


def _garbage(story: Timeline) -> Iterator[str]:
    for grant in story.again:
        yield f"{_shown(grant)} was granted twice"
    for access in story.accesses:
        held = story.grants.get(access.holder)
        if held is None:
            yield f"{_shown(access)} had access and was never granted"
        elif (held.mode, held.fence) != (access.mode, access.fence):
            yield f"{_shown(access)} had access, granted was {_shown(held)}"
    for one, two in pairwise(_accepted(story)):
        if one.serial == two.serial:
            yield f"{_shown(one)} and {_shown(two)} both had access {one.serial}"


_CHECKS: tuple[tuple[ViolationKind, Callable[[Timeline], Iterator[str]]], ...] = (
    ("exclusion", _exclusion),
    ("fence", _fence),
    ("isolation", _isolation),
    ("garbage", _garbage),
)


def _accepted(story: Timeline) -> list[Access]:
    accepted = (access for access in story.accesses if access.serial is not None)
    return sorted(accepted, key=attrgetter("serial"))


def _shown(event: Granted | Access) -> str:
    return f"{event.mode} {event.holder} (fence {event.fence})"


def _seconds(at: float) -> str:
    return f"{at / 1e9:.6f} s"
