"""The judge of a soak: ``python -m tests.soak.judge DIR LEASE``, beside the clients.

It reads the histories while they are written, so that a run of any length needs little
memory: events are judged together with those of the last ``KEEP`` seconds, and then
dropped, except the grant with the highest fence of each name. It ends when there is a
file ``DIR/end`` and nothing is left to read.

It is no third set of rules: ``check_history`` (``testing/checker``) judges each part of
the history. Added here are what a growing history needs, the limit of semaphores,
fairness, and which faults excuse a violation. The Go judge (``tests/judge``) searches
for a linear order, and could not do so for hours of events.

Judged: exclusion, fence order, isolation of the accesses that the fenced register
accepted (``check_history``); the limit and the fences of semaphores; fairness; grants
that are lost, and own names that are not free, while no fault is in force. A fault that
is beyond what the store promises is judged by the fence only: two holders at a time are
counted then, and are no violation.
"""

from __future__ import annotations

import json
import re
import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from aiorwlock_remote.testing.checker import check_history, timelines
from aiorwlock_remote.testing.history import (
    Access,
    Died,
    Event,
    Failed,
    Granted,
    Lost,
    Refused,
    Released,
    Releasing,
    Unknown,
    decode_event,
    now,
)
from tests.faults.workers import HistoryTail
from tests.soak.names import FAIR, LIMIT

KEEP = 20.0
"""Seconds for which events are judged together with later ones."""
WAITING = 120.0
"""Seconds after which an attempt without an outcome is dropped: its process is dead."""
STANDS_STILL = 0.4
"""Seconds without an event of a process that excuse it: its loop is blocked, or the
machine has other work. After half a claim window it may have missed its turn in a
queue: the message and the request take their part of the window, too."""
INTERVAL = 5.0
SECOND = 10**9
NO_FAULT = "no fault"
MAX_LOST, LEAST_LONG = 0.02, 20
"""Part of the grants of long names that may be lost without a fault, as the machine may
stand still; from so many of them on.
"""
PERMITS = "permits/"
_CAME_AFTER = re.compile(r". (\w+) \(fence .*\) came after . (\w+) \(fence .*\)")
_ENTERED = re.compile(r"entered at ([0-9.]+) s")


@dataclass
class Injected:
    """One fault: in force from ``begun`` to ``healed``, in ns of ``history.now()``."""

    kind: str
    begun: int
    fence_only: bool
    forgets: bool
    healed: int | None = None


class FaultLog:
    """The faults that the soak wrote down, in order: one at a time is in force."""

    def __init__(self, path: Path, lease: float) -> None:
        self._path = path
        self._read = 0
        self._after = round(2 * lease * SECOND)
        self._begun: list[int] = []
        self.faults: list[Injected] = []

    def update(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                entry = json.loads(line)
                if "healed" in entry:
                    self.faults[-1].healed = entry["healed"]
                    continue
                fields = ("kind", "begun", "fence_only", "forgets")
                fault = Injected(*map(entry.__getitem__, fields))
                self.faults.append(fault)
                self._begun.append(fault.begun)

    def at(self, time: int) -> Injected | None:
        """Return the fault that was in force, or had been within two leases before."""
        place = bisect_right(self._begun, time)
        if not place:
            return None
        fault = self.faults[place - 1]
        healed = fault.healed
        return fault if healed is None or time <= healed + self._after else None

    def excuses(self, time: int, *, forgets: bool = False) -> bool:
        """Return whether a fault judged by the fence only was in force, or just had.

        ``forgets``: only a fault after which the store has forgotten what it did last.
        """
        place = bisect_right(self._begun, time)
        for fault in reversed(self.faults[:place]):
            healed = fault.healed
            if healed is not None and healed + self._after < time:
                return False
            if fault.forgets if forgets else fault.fence_only:
                return True
        return False

    def calm(self, begin: int, end: int) -> bool:
        """Return whether no fault touched this time."""
        return bisect_right(self._begun, end) == bisect_left(
            self._begun, begin - self._after
        ) and not self.at(begin)


@dataclass
class AttemptHistory:
    """The events of one attempt."""

    events: list[Event] = field(default_factory=list)
    last: int = 0
    until: int = 0
    over: bool = False
    granted: Granted | None = None

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.last = max(self.last, event.at)
        if isinstance(event, Granted):
            self.granted = event
        if isinstance(event, Granted | Access | Releasing):
            self.until = max(self.until, event.until or self.until)
        self.over |= isinstance(event, Refused | Failed | Unknown | Released | Lost)

    def settled(self, horizon: int) -> bool:
        """Return whether nothing that comes can concern this attempt any more."""
        if self.granted is None:
            waits = 0 if self.over else round(WAITING * SECOND)
            return self.last + waits < horizon
        return self.last < horizon and (self.over or self.until < horizon)


class Judge:
    """The verdict on a history that grows."""

    def __init__(self, faults: FaultLog, claim_window: float) -> None:
        self.misses_a_turn: float = claim_window / 2
        self.counts: Counter[str] = Counter()
        self.did: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """What happened while each kind of fault was in force, and soon after."""
        self.violations: dict[tuple[str, str, str], str] = {}
        self.excused: Counter[str] = Counter()
        self.compared = 0
        self.most_passed = 0
        self.long = 0
        """Grants of long names that no fault touched."""
        self.long_lost = 0
        """How many of them were lost."""
        self.faults = faults
        self._histories: defaultdict[str, dict[str, AttemptHistory]] = defaultdict(dict)
        self._events: defaultdict[str, list[int]] = defaultdict(list)
        """The times of the events of each process."""
        self._seen_until = 0
        self._fair_until = 0
        self._later: list[Event] = []

    def read(self, lines: Iterable[bytes], until: int) -> None:
        """Take what was written down.

        What happened after ``until``, when the reading began, is kept for the next
        time: of a process whose file was read early, events of that time are missing.
        """
        earlier, self._later = self._later, []
        for event in chain(earlier, map(decode_event, lines)):
            if event.at > until:
                self._later.append(event)
            else:
                self._hear(event)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Died):
            return
        self._histories[event.resource].setdefault(event.holder, AttemptHistory()).add(
            event
        )
        insort(self._events[event.process], event.at)  # threads write as they come
        self._seen_until = max(self._seen_until, event.at)
        what = ""
        if isinstance(event, Granted):
            self.counts["grants"] += 1
        elif isinstance(event, Access):
            accepted = event.serial is not None
            self.counts["accesses" if accepted else "accesses refused"] += 1
            what = "" if accepted else "accesses refused"
        elif isinstance(event, Lost):
            what = "grants lost"
        elif isinstance(event, Unknown):
            what = "acquires failed"
        elif isinstance(event, Refused):
            what = "not granted in time"
        if what:
            fault = self.faults.at(event.at)
            self.did[fault.kind if fault else NO_FAULT][what] += 1

    def judge(self) -> None:
        """Judge what is kept, and drop what is settled."""
        self.faults.update()
        locks = [event for event in self._kept() if not _of_permits(event)]
        for found in check_history(locks).violations:
            self._found(found.kind, found.resource, found.text)
        permits = [event for event in self._kept() if _of_permits(event)]
        for kind, resource, text in _permit_violations(permits):
            self._found(kind, resource, text)
        self._compare_turns()
        self._drop()

    def figures(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "did": {kind: dict(what) for kind, what in self.did.items()},
            "violations": [
                f"{kind} {resource}: {text}"
                for (kind, resource, _), text in self.violations.items()
            ],
            "held long": self.long,
            "held long, and lost": self.long_lost,
            "judged by the fence only": dict(self.excused),
            "turns compared": self.compared,
            "most passed by": self.most_passed,
            "judged until": self._seen_until,
        }

    def _kept(self) -> Iterator[Event]:
        for histories in self._histories.values():
            for story in histories.values():
                yield from story.events

    def _found(self, kind: str, resource: str, text: str) -> None:
        key = kind, resource, " ".join(text.split()[:2])
        if key in self.violations:
            return
        if self._excused(resource, text):
            self.excused[key[2]] += 1
        else:
            self.violations[key] = text

    def _excused(self, resource: str, text: str) -> bool:
        """Return whether a fault explains this that is judged by the fence only.

        Of two that hold at a time, who entered first may have the higher fence: their
        fences are in order if none of the two asked after the other was granted. And
        readers may join an earlier reader whose release the store forgot.
        """
        if entered := _ENTERED.search(text):
            return self.faults.excuses(round(float(entered[1]) * SECOND))
        if came := _CAME_AFTER.fullmatch(text):
            histories = self._histories[resource]
            new, old = (histories[holder].granted for holder in came.groups())
            assert new is not None
            assert old is not None
            if new.asked_at <= old.at:
                return self.faults.excuses(new.at)
            if new.mode == "R" and self._joined_earlier(new, old):
                return self.faults.excuses(new.at, forgets=True)
        return False

    def _joined_earlier(self, new: Granted, old: Granted) -> bool:
        """Return whether the fence of ``new`` is that of a reader before ``old``."""
        return any(
            isinstance(event, Granted)
            and (event.mode, event.fence) == ("R", new.fence)
            and event.at < old.at
            for story in self._histories[new.resource].values()
            for event in story.events
        )

    def _compare_turns(self) -> None:
        """Find by how many later attempts an attempt at a fair mutex was passed.

        Only attempts during whose wait no fault was in force are compared.
        """
        # Whoever asked before has been granted by then, or is not counted.
        until = self._seen_until - round(KEEP / 2 * SECOND)
        for name in FAIR:
            granted = [s.granted for s in self._histories[name].values() if s.granted]
            granted.sort(key=attrgetter("at"))
            times = [grant.at for grant in granted]
            for place, grant in enumerate(granted):
                if not self._fair_until < grant.at <= until:
                    continue
                if not self.faults.calm(grant.asked_at, grant.at):
                    continue
                if self._stood_still(grant, self.misses_a_turn):
                    continue
                first = bisect_right(times, grant.asked_at)
                earlier = granted[first:place]
                passed = sum(other.asked_at > grant.asked_at for other in earlier)
                self.compared += 1
                self.most_passed = max(self.most_passed, passed)
        self._fair_until = until

    def _look_back(self, resource: str, story: AttemptHistory) -> None:
        """Note what an attempt that is over came to, if no fault touched it."""
        granted, kind = story.granted, resource.partition("/")[0]
        if kind == "long" and granted and self.faults.calm(granted.at, story.last):
            self.long += 1
            self.long_lost += any(isinstance(event, Lost) for event in story.events)
            if self.long >= LEAST_LONG and self.long_lost > MAX_LOST * self.long:
                lost = (
                    f"{self.long_lost} of {self.long} grants are lost without a fault"
                )
                self.violations.setdefault(("losses", kind, ""), lost)
        if kind == "own":
            # Only one task uses this name: it had to be free.
            for event in story.events:
                if (
                    isinstance(event, Refused)
                    and self.faults.calm(event.asked_at, event.at)
                    and not self._stood_still(event, STANDS_STILL)
                ):
                    text = f"{event.holder} was refused an own name"
                    self.violations.setdefault(("leak", resource, ""), text)

    def _stood_still(self, event: Granted | Refused, seconds: float) -> bool:
        """Whether the process did nothing for so long while one of its tasks waited."""
        events, asked_at = self._events[event.process], event.asked_at
        times = events[bisect_left(events, asked_at) : bisect_right(events, event.at)]
        pauses = (later - time for time, later in pairwise([asked_at, *times]))
        return max(pauses, default=0) > seconds * SECOND

    def _drop(self) -> None:
        horizon = self._seen_until - round(KEEP * SECOND)
        for resource, histories in self._histories.items():
            settled = {h: s for h, s in histories.items() if s.settled(horizon)}
            granted = [story.granted for story in settled.values() if story.granted]
            if granted:
                highest = max(granted, key=attrgetter("fence", "mode")).holder
                del settled[highest]
            for holder, story in settled.items():
                self._look_back(resource, story)
                del histories[holder]
        for events in self._events.values():
            del events[: bisect_left(events, horizon - round(WAITING * SECOND))]


def _of_permits(event: Event) -> bool:
    return not isinstance(event, Died) and event.resource.startswith(PERMITS)


def _permit_violations(events: list[Event]) -> Iterator[tuple[str, str, str]]:
    for resource, story in timelines(events).items():
        changes = list[tuple[float, int, Granted]]()
        for grant in story.grants.values():
            if story.end(grant.holder) > grant.at:
                changes.append((grant.at, 1, grant))
                changes.append((story.end(grant.holder), -1, grant))
        inside = 0
        for at, change, grant in sorted(changes, key=lambda one: one[:2]):
            inside += change
            if change > 0 and inside > LIMIT:
                seconds = f"entered at {at / SECOND:.6f} s"
                text = f"permit {grant.holder} {seconds}, beside {LIMIT} others"
                yield "exclusion", resource, text
        granted = sorted(story.grants.values(), key=attrgetter("at"), reverse=True)
        high = 0
        for new in sorted(story.grants.values(), key=attrgetter("asked_at")):
            while granted and granted[-1].at < new.asked_at:
                high = max(high, granted.pop().fence)
            if new.fence <= high:
                yield "fence", resource, f"permit {new.holder} came after {high}"


def main(folder: Path, lease: float, claim_window: float) -> None:
    """Judge until the end of the run; the figures stand in ``DIR/verdict.json``."""
    tail = HistoryTail(folder / "history")
    judge = Judge(FaultLog(folder / "faults.jsonl", lease), claim_window)
    ending = False
    while True:
        begun = time.monotonic()
        judge.faults.update()
        judge.read(tail.lines(), now())
        judge.judge()
        written = folder / "verdict.new"
        written.write_text(json.dumps(judge.figures()))
        written.rename(folder / "verdict.json")
        if ending:
            return
        ending = (folder / "end").exists()  # and once more, for what came meanwhile
        if not ending:
            time.sleep(max(0.0, begun + INTERVAL - time.monotonic()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
