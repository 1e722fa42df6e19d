"""The verdict of a demo: whether locks excluded, and what the injected faults did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from aiorwlock_remote.cli.demo.worker import TOTAL, BookEntry
from aiorwlock_remote.testing.checker import Verdict, check_history
from aiorwlock_remote.testing.history import Event, Granted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    None: that was not seen. ``reads``: number of grants to readers.
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
    seen: Mapping[str, str],
    *,
    broken: bool,
) -> Report:
    """Judge a demo by the workers' events and by ``book``, the record of all accesses.

    ``seen``: what followed the faults, as ``FaultPlan`` has it; ``broken``: there were
    no locks.
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
        killed=seen.get("killed"),
        stopped=seen.get("stopped"),
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
