"""Four processes that lock whatever becomes of the store, and their verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from operator import attrgetter
from pathlib import Path

from aiorwlock_remote.testing.checker import Verdict, check_history
from aiorwlock_remote.testing.history import Event, Granted, decode_event, now
from tests.faults.workers import HistoryTail, WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.process import until
from tests.servers.server import Server

LOOPS = ("asyncio", "trio", "asyncio", "trio")
PATIENCE = 120.0
"""Seconds. How soon they enter again is reported, and not judged: machines are busy."""
LEASE = 3.0
GLANCE = 0.1


class FourWorkers:
    """``plan``: see ``tests.faults.worker``. ``gaps``: the seconds after each blow."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        lease: float = LEASE,
        body: float = 0.002,
        writes: float = 0.5,
    ) -> None:
        self.pool = pool
        self.gaps: dict[str, float] = {}
        self._granted: list[Granted] = []
        self._tail = HistoryTail(pool.folder)
        self.plan: dict[str, float] = {
            "tasks": 8,
            "hardy": True,
            "lease": lease,
            "body": body,
            "writes": writes,
        }

    def start(
        self, *, locks: int = 1, fenced: bool = True, urls: Sequence[str] = ()
    ) -> None:
        """All four. ``locks``: of the first one alone, see the controls.

        ``urls``: where they go in turn, if not to the pool's.
        """
        ways = cycle(urls or [self.pool.url])
        for number, (loop, url) in enumerate(zip(LOOPS, ways, strict=False)):
            own = {"locks": 1 if number else locks, "fenced": fenced}
            self.pool.start(url, loop=loop, **self.plan, **own)

    def goes_on(self, blow: str, after: int | None = None) -> None:
        """Every process is let in, since now or a moment of ``history.now()``."""
        since, names = now() if after is None else after, set(self.pool.names)
        until(
            lambda: names <= {e.process for e in self.granted(since)},
            f"everybody enters ({blow})",
            PATIENCE,
            every=GLANCE,
        )
        self.gaps[blow] = round((self.granted(since)[0].at - since) / 1e9, 2)

    def takes_turns(self, count: int) -> None:
        """So many grants more."""
        since = now()
        enough = f"{count} turns"
        until(lambda: len(self.granted(since)) >= count, enough, PATIENCE, every=GLANCE)

    def outlives(self, server: Server, cut: Callable[[], None]) -> None:
        """It is killed, stands still, and ``cut`` ends all sessions at it."""
        for round_ in range(3):
            server.restart()  # kill -9
            self.goes_on(f"killed {round_}")
        server.pause()
        time.sleep(2)
        server.resume()
        self.goes_on("stopped")
        for _ in range(10):
            time.sleep(0.2)
            cut()
        self.goes_on("cut off")

    def granted(self, after: int) -> list[Granted]:
        """Who was let in since then, in order."""
        self._read_on()
        return [event for event in self._granted if event.at > after]

    def _read_on(self) -> None:
        """What was written since the last time: a history is long."""
        events = map(decode_event, self._tail.lines())
        self._granted += [event for event in events if isinstance(event, Granted)]
        self._granted.sort(key=attrgetter("at"))

    def end(self) -> list[Event]:
        """Kill all of them; what they have written down."""
        for name in self.pool.names:
            self.pool.kill(name)
        return self.pool.history()


def acquit(events: list[Event], folder: Path, go_judge: GoJudge) -> Verdict:
    """Nobody was inside beside a writer, no fence went back, no session was torn.

    What the Go judge finds beside that is left out: requests without an answer.
    """
    verdict = check_history(events)
    assert not verdict.violations
    go_verdict = go_judge(sorted(folder.glob("*.jsonl")), LEASE * 1000)
    assert not set(go_verdict.violations) & {
        "fence",
        "isolation",
        "garbage",
        "exclusion",
    }
    return verdict


def clashes(pool: WorkerPool, *, lease: float = LEASE) -> set[str]:
    """The harm done by a crowd whose first process locks something else."""
    workers = FourWorkers(pool, lease=lease)
    workers.start(locks=2, fenced=False)
    workers.goes_on("begun")
    workers.takes_turns(100)
    return {violation.kind for violation in check_history(workers.end()).violations}
