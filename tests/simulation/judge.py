"""What must hold of every run: judged from what the holders saw, when it is over.

The times are the world's. A holder believes in its grant at the moments when
``held.check()`` did not raise; so from its first to its last such moment nobody else
may have believed in a grant that excludes it, and an access with a smaller fence than
an earlier one is an error, whoever makes it.

``check_history`` (``testing/checker``) cannot judge these runs: the times of its events
are of one clock that all processes share, and here each process's clock has an origin
and a speed of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aiorwlock_remote import Held, sync
from tests.simulation.world import BEGIN

InDoubt = Callable[[float, Collection[str]], bool]


@dataclass(eq=False)
class Visit:
    """One grant as its holder saw it. ``seen``: the times at which it was valid."""

    resource: str
    mode: str
    fence: int
    who: str
    limit: int
    seen: list[float] = field(default_factory=list)

    @property
    def process(self) -> str:
        return self.who.partition(".")[0]


class Judge:
    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self._touches: dict[str, list[tuple[float, int, Visit]]] = defaultdict(list)

    def enters(
        self, held: Held | sync.Held, who: str, time: float, limit: int = 1
    ) -> Visit:
        visit = Visit(held.resource, held.mode, held.fence, who, limit)
        self.visits.append(visit)
        self.touches(visit, time)
        return visit

    def touches(self, visit: Visit, time: float) -> None:
        """The holder has just checked its grant, and uses the resource."""
        visit.seen.append(time)
        touches = self._touches[visit.resource]
        touches.append((time, len(touches), visit))

    def violations(self, in_doubt: InDoubt) -> list[str]:
        """Return what must not have happened.

        ``in_doubt(time, names)``: whether one of these processes may rightly not know
        that its grant was lost in a failover. Then the fences alone keep order, at what
        they protect; they are compared at all other times.
        """
        found: list[str] = []
        for resource, touches in self._touches.items():
            touches.sort(key=lambda touch: touch[:2])
            found += _too_many(resource, [t[2] for t in touches], in_doubt)
            names = {visit.process for _, _, visit in touches}
            sure = [touch for touch in touches if not in_doubt(touch[0], names)]
            found += _fences_fall(resource, sure)
        return found


def _fences_fall(resource: str, touches: list[tuple[float, int, Visit]]) -> list[str]:
    if not touches or touches[0][2].mode == "permit":  # permits are used side by side
        return []
    highest = touches[0][2]
    for _, _, visit in touches:
        other = visit is not highest
        shared = visit.mode == highest.mode == "read"
        if visit.fence < highest.fence or (
            other and visit.fence == highest.fence and not shared
        ):
            now = f"{visit.who} uses fence {visit.fence}"
            return [f"{resource}: {now} after {highest.who} used {highest.fence}"]
        highest = visit
    return []


def _too_many(resource: str, visits: list[Visit], in_doubt: InDoubt) -> list[str]:
    moments: list[tuple[float, int, Visit]] = []
    for visit in dict.fromkeys(visits):
        # At one moment the one that leaves comes before the one that enters.
        if visit.seen[-1] > visit.seen[0]:
            moments += [(visit.seen[0], 1, visit), (visit.seen[-1], 0, visit)]
    moments.sort(key=lambda moment: moment[:2])
    inside: dict[Visit, None] = {}
    for time, enters, visit in moments:
        if not enters:
            del inside[visit]
            continue
        inside[visit] = None
        readers = sum(one.mode == "read" for one in inside)
        limit = min(one.limit for one in inside)
        names = {one.process for one in inside}
        crowded = len(inside) > limit and readers < len(inside)
        if crowded and not in_doubt(time, names):
            who = ", ".join(f"{one.who} ({one.mode})" for one in inside)
            return [f"{resource}: {who} are inside at {time - BEGIN:.6f}"]
    return []
