"""The verdict of a demo: whether locks excluded, and what the injected faults did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from aiorwlock_remote.cli.demo.screen import first
from aiorwlock_remote.cli.demo.worker import TOTAL, BookEntry
from aiorwlock_remote.testing.checker import Verdict, check_history
from aiorwlock_remote.testing.history import (
    Access,
    Died,
    Event,
    Granted,
    Lost,
    Releasing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiorwlock_remote.cli.demo.faults import InjectedFaults

KINDS = {
    "exclusion": "exclusion",
    "fence": "fence order",
    "isolation": "isolation",
    "money": "money",
    "torn": "torn reads",
    "garbage": "history",
}
MEANINGS = (
    "exclusion: two held a lock at once, and one of them to write",
    "fence order: a later grant had no higher fence",
    "isolation: between two accesses of one holder came an access that it excludes",
    "money: the total of a ledger changed",
    "torn reads: balances changed while one holder read them",
    "history: an access without its grant",
)
"""What each kind of violation means, in the order of ``KINDS``."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a demo: the judged history of the locks, and all violations.

    ``counts`` and ``examples``: number of violations and the first one, by their names
    in ``KINDS``. ``killed``, ``stopped``: what followed when that was done to a worker;
    None: the history does not show it. ``reads``: number of grants to readers.
    ``broken``: the demo ran without locks.
    """

    verdict: Verdict
    counts: Counter[str]
    examples: dict[str, str]
    reads: int
    killed: str | None
    stopped: str | None
    broken: bool

    @property
    def violations(self) -> int:
        return self.counts.total()

    @property
    def ok(self) -> bool:
        return not (self.violations or self.broken) and bool(
            self.killed and self.stopped
        )

    def lines(self) -> Iterator[str]:
        verdict = self.verdict
        grants = f"{verdict.grants - self.reads} write, {self.reads} read"
        p50, p99 = verdict.wait_p50, verdict.wait_p99
        counts = (f"{name} {self.counts[kind]}" for kind, name in KINDS.items())
        yield f"grants                {verdict.grants} ({grants})"
        yield f"waits                 p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        yield f"stale writes refused  {verdict.refused}"
        if not self.broken:
            yield f"killed holder         {self.killed or 'NOT SEEN'}"
            yield f"stopped holder        {self.stopped or 'NOT SEEN'}"
        yield f"violations            {self.violations}"
        yield f"  {', '.join(counts)}"
        for meaning in MEANINGS:
            yield f"    {meaning}"
        for kind in sorted(self.examples, key=list(KINDS).index):
            yield f"  {KINDS[kind]}: {self.examples[kind]}"


def report(
    events: Sequence[Event],
    book: Sequence[BookEntry],
    injected: InjectedFaults,
    *,
    broken: bool,
) -> Report:
    """Judge a demo by the workers' events and by ``book``, the record of all accesses.

    ``injected``: the workers stopped and killed; ``broken``: there were no locks.
    """
    verdict = check_history(events)
    found: list[tuple[str, str]]
    found = [(v.kind, f"{v.resource}: {v.text}") for v in verdict.violations]
    found += [("money", text) for text in _money(book)]
    found += [("torn", text) for text in _torn(book)]
    return Report(
        verdict=verdict,
        counts=Counter(kind for kind, _ in found),
        # Reversed: of several values for a key the first violation stays.
        examples=dict(reversed(found)),
        reads=sum(isinstance(e, Granted) and e.mode == "R" for e in events),
        killed=_killed(events, injected),
        stopped=_stopped(events, injected),
        broken=broken,
    )


def _money(book: Sequence[BookEntry]) -> Iterator[str]:
    # Yields each access after which there was more or less money than before.
    for ledger, entries in groupby(book, lambda entry: entry.ledger):
        before = TOTAL
        for entry in entries:
            after = sum(entry.balances)
            if after != before:
                yield f"{ledger}: {before} became {after} by {entry.holder}"
            before = after


def _torn(book: Sequence[BookEntry]) -> Iterator[str]:
    # Yields each reader that saw other balances the second time.
    first: dict[str, BookEntry] = {}
    for entry in book:
        if entry.mode == "R":
            other = first.setdefault(entry.holder, entry)
            if other.balances != entry.balances:
                yield (
                    f"{entry.ledger}: accounts changed while {entry.holder} read"
                    f" (total {sum(other.balances)}, then {sum(entry.balances)})"
                )


def _killed(events: Sequence[Event], injected: InjectedFaults) -> str | None:
    # None if the history does not show the fault and its consequences.
    one = injected.killed
    if one is None:
        return None
    held = first(Granted, events, lambda e: e.holder == one.holder)
    left = first(Releasing, events, lambda e: e.holder == one.holder)
    died = first(Died, events, lambda e: e.process == one.name)
    # A worker that had begun to release left nothing behind that had to run out.
    if held is None or left is not None or died is None or one.lease_end is None:
        return None
    after = first(
        Granted, events, lambda e: e.resource == one.ledger and e.at > died.at
    )
    if after is None:
        return None
    late = (after.at - one.lease_end) / 1e6
    return (
        f"{one.name} held {one.ledger}; its lease ran out,"
        f" {after.process} entered {late:.0f} ms later"
    )


def _stopped(events: Sequence[Event], injected: InjectedFaults) -> str | None:
    # None if the history does not show the fault and its consequences.
    one = injected.stopped
    if one is None:
        return None
    lost = first(Lost, events, lambda e: e.holder == one.holder)
    refused = first(
        Access, events, lambda e: e.holder == one.holder and e.serial is None
    )
    if refused is None or lost is None:
        return None
    return (
        f"{one.name} held {one.ledger}; late write refused,"
        f" told LockLost ({lost.reason})"
    )
