"""One soak: the clients, the faults, and what is judged beside their histories."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.testing.history import Granted, decode_event, now
from tests.faults.workers import ROOT, HistoryTail, WorkerPool
from tests.soak import names
from tests.soak.counts import operations, totals
from tests.soak.faults import Fault, stopped
from tests.soak.judge import SECOND
from tests.soak.planted import OTHER_NAMES
from tests.soak.site import Site

LOOPS = ("asyncio", "trio", "threads", "uvloop", "asyncio", "threads")
"""The loop of the process at each place."""
JUDGE = [sys.executable, "-m", "tests.soak.judge"]
STEADY = 3
"""The processes of the first places are never killed: their memory is measured."""
TASKS = 12
QUIET_EVERY = 25
"""Faults between two quiet spells."""
QUIET = 6
"""Leases for which such a spell lasts, after two in which all comes to rest."""
SOMEBODY, EVERYBODY = 10.0, 60.0
"""Bounds of progress after a fault has ended, in seconds: two leases and so much, until
a hot name is entered; until each hot name, and each process, has entered."""
GLANCE = 0.05
SAMPLES = 5.0
"""Seconds between two samples of memory and descriptors, and two savings."""
MORE_MEMORY, MORE_FILES = 8 * 1024, 16
"""What counts as flat: kB and descriptors between the second and the last quarter."""


class Broken(Exception):
    """The soak has found something wrong."""


@dataclass
class Effect:
    """What the faults of one kind did. ``entered``: seconds until somebody entered."""

    fence_only: bool
    count: int = 0
    in_force: float = 0.0
    entered: list[float] = field(default_factory=list)


@dataclass
class Usage:
    """Memory and open files of one process over time."""

    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def sample(self, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = (x for x in status.splitlines() if x.startswith("VmRSS:"))
        self.memory.append(int(line.split()[1]))
        self.files.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))

    @staticmethod
    def _early_and_late(samples: list[int]) -> tuple[float, float]:
        quarter = len(samples) // 4
        early = samples[quarter : 2 * quarter] or samples
        return statistics.median(early), statistics.median(samples[-quarter or 0 :])

    def figures(self) -> dict[str, Any]:
        memory, files = map(self._early_and_late, (self.memory, self.files))
        return {
            "memory kB": memory,
            "files": files,
            "flat": memory[1] <= memory[0] + MORE_MEMORY
            and files[1] <= files[0] + MORE_FILES,
        }


class Soak:
    """A run on one store, until a time, or until there were enough operations."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        seed: int,
        *,
        loops: Sequence[str] = LOOPS,
        steady: int = STEADY,
        tasks: int = TASKS,
        quiet_every: int = QUIET_EVERY,
        only: str = "",
        save: Callable[[dict[str, Any]], None] = lambda _: None,
        plant: str = "",
    ) -> None:
        """Make a run that has not begun.

        Args:
            site: the store.
            folder: an empty one, for histories.
            seed: determines which faults come, and what each client does.
            loops: the event loop of the process at each place.
            steady: how many processes are never killed, so that they may be measured.
            tasks: of each process.
            quiet_every: faults between two quiet spells.
            only: how the kinds of the faults begin; "": all of them.
            save: is given the figures now and then.
            plant: a fault of ``planted`` in the clients, to be found; "": none.
        """
        self._site = site
        self._folder = folder
        self._random = Random(seed)
        self._seed = seed
        self._loops = loops
        self._steady = steady
        self._tasks = tasks
        self._quiet_every = quiet_every
        self._only = only
        self._save = save
        self._plant = plant
        self._history = folder / "history"
        (self._history / "tickets").mkdir(parents=True)
        self._log = (folder / "faults.jsonl").open("ab", buffering=0)
        self._fleet = WorkerPool(
            site.url, self._history, "tests.soak.process", site.before
        )
        self._tail = HistoryTail(self._history)
        self._places: dict[int, str] = {}
        self._started = 0
        self._effects: dict[str, Effect] = {}
        self._usage: defaultdict[int, Usage] = defaultdict(Usage)
        self._entered: dict[str, int] = {}
        self._worked: dict[str, int] = {}
        self._everybody: list[float] = []
        self._begun = time.monotonic()
        self._sampled = 0.0
        self._stopping = False
        self.problems: list[str] = []

    # ------------------------------------------------------------------- the run

    def stop(self) -> None:
        """End the run in order, before its time."""
        self._stopping = True

    def run(
        self, seconds: float, *, operations: int = sys.maxsize, faults: int = 0
    ) -> dict[str, Any]:
        """Run for so long, or until so many operations and faults; return figures."""
        with self._fleet, self._judging() as self._judge:
            try:
                anyio.run(self._prepare)
                for place in range(len(self._loops)):
                    self._start(place)
                self._all_enter()
                self._strike_until(self._begun + seconds, operations, faults)
                self._all_enter()
                self._leave()
            except (Broken, TimeoutError, AssertionError) as exc:
                self.problems.append(f"{type(exc).__name__}: {exc}")
            self._log.close()
            (self._folder / "end").touch()
            if code := self._judge.wait():
                self.problems.append(f"the judge failed: {code}")
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        figures = self.figures()
        figures["ended"] = True
        if found := figures["judge"].get("violations"):
            self.problems += [v for v in found if v not in self.problems]
        for place, usage in figures["usage"].items():
            if not usage["flat"]:
                self.problems.append(f"process {place} grows: {usage}")
        if figures["judge"].get("most passed by", 0) > figures["fairness bound"]:
            self.problems.append("fairness: see judge")
        figures["problems"] = self.problems
        self._save(figures)
        return figures

    @contextmanager
    def _judging(self) -> Iterator[subprocess.Popen[bytes]]:
        site = self._site
        judge = subprocess.Popen(
            [*JUDGE, str(self._folder), *map(str, (site.lease, site.claim_window))],
            cwd=ROOT,
        )
        try:
            yield judge
        finally:
            judge.kill()
            judge.wait()

    def _start(self, place: int) -> None:
        self._started += 1
        sound = self._plant == OTHER_NAMES and place < len(self._loops) - 1
        name = self._fleet.start(
            self._site.url_of(place),
            self._site.before_of(place),
            place=place,
            loop=self._loops[place],
            tasks=self._tasks,
            lease=self._site.lease,
            seed=self._seed + self._started,
            sets=self._site.sets,
            plant="" if sound else self._plant,
        )
        self._places[place] = name

    def _strike_until(self, end: float, calls: int, least: int) -> None:
        faults = [each for each in self._faults() if each.kind.startswith(self._only)]
        weights = [fault.weight for fault in faults]
        for number in range(1, sys.maxsize):
            (fault,) = self._random.choices(faults, weights)
            self._strike(fault)
            self._pump(self._random.uniform(0.0, 0.3))
            if number % self._quiet_every == 0:
                self._quiet()
            enough = number >= least and operations(totals(self._history)) >= calls
            if time.monotonic() > end or enough or self._stopping:
                return

    def _faults(self) -> list[Fault]:
        lease = self._site.lease
        return [
            Fault("client killed", self._killed, (0.0, 0.2), 6),
            Fault("client stopped", self._stopped, (0.02, 0.5 * lease), 6),
            Fault(
                "client stopped past its lease", self._stopped, (lease, 2 * lease), 2
            ),
            *self._site.faults(),
        ]

    def _strike(self, fault: Fault) -> None:
        effect = self._effects.setdefault(fault.kind, Effect(fault.fence_only))
        begun = now()
        kept = {"fence_only": fault.fence_only, "forgets": fault.forgets}
        self._write(kind=fault.kind, begun=begun, **kept)
        with fault.strike(self._random):
            self._pump(self._random.uniform(*fault.seconds))
        healed = now()
        self._write(healed=healed)
        effect.count += 1
        effect.in_force += (healed - begun) / SECOND
        bound = 2 * self._site.lease + SOMEBODY + fault.grace
        self._wait(
            lambda: max(self._entered.values()) > healed,
            f"somebody enters after: {fault.kind}",
            bound,
        )
        first = min(at for at in self._entered.values() if at > healed)
        effect.entered.append((first - healed) / SECOND)

    def _quiet(self) -> None:
        """Nothing is done for a while: everybody enters; turns are compared, and no
        grant may be lost.
        """
        self._pump(2 * self._site.lease)
        self._all_enter()
        self._pump(QUIET * self._site.lease)

    def _all_enter(self) -> None:
        since = now()
        hot = {f"hot/{number}" for number in range(names.HOT)}

        def entered() -> bool:
            done = {name for name, at in self._entered.items() if at > since}
            worked = {name for name, at in self._worked.items() if at > since}
            return hot <= done and set(self._places.values()) <= worked

        bound = 2 * self._site.lease + EVERYBODY
        self._wait(entered, "every process and every hot name enters", bound)
        self._everybody.append((now() - since) / SECOND)

    # -------------------------------------------------------- faults of clients

    @contextmanager
    def _killed(self, random: Random) -> Iterator[None]:
        place = random.randrange(self._steady, len(self._loops))
        self._fleet.kill(self._places[place])
        yield
        self._start(place)

    @contextmanager
    def _stopped(self, random: Random) -> Iterator[None]:
        name = self._places[random.randrange(len(self._loops))]
        with stopped(self._fleet.pid(name)):
            yield

    # ------------------------------------------------------------- while it runs

    def _wait(self, check: Callable[[], bool], what: str, bound: float) -> None:
        end = time.monotonic() + bound
        while not check():
            if time.monotonic() > end:
                raise Broken(f"progress: not within {bound:g} s: {what}")
            self._pump(GLANCE)

    def _pump(self, seconds: float) -> None:
        """Read what was granted, for so many seconds; look after the clients."""
        end = time.monotonic() + seconds
        while True:
            for line in self._tail.lines():
                if b'"e":"granted"' in line:
                    self._note(line)
            self._look()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(GLANCE, left))

    def _note(self, line: bytes) -> None:
        event = decode_event(line)
        assert isinstance(event, Granted)
        if event.resource.startswith("hot/"):
            at = self._entered.get(event.resource, 0)
            self._entered[event.resource] = max(at, event.at)
        at = self._worked.get(event.process, 0)
        self._worked[event.process] = max(at, event.at)

    def _look(self) -> None:
        if time.monotonic() < self._sampled + SAMPLES:
            return
        self._sampled = time.monotonic()
        if ended := self._fleet.ended():
            raise Broken(f"clients ended by themselves: {ended}")
        if self._judge.poll() is not None:
            raise Broken("the judge ended by itself")
        for place in range(self._steady):
            if place in self._places:
                self._usage[place].sample(self._fleet.pid(self._places[place]))
        figures = self.figures()
        if found := figures["judge"].get("violations"):
            raise Broken(found[0])
        self._save(figures)

    def _write(self, **what: object) -> None:
        self._log.write(json.dumps({**what, "wall": time.time()}).encode() + b"\n")

    # ------------------------------------------------------------------- the end

    def _leave(self) -> None:
        self._fleet.leave(*self._places.values())
        self._places.clear()
        anyio.run(self._sweep)
        time.sleep(2 * self._site.lease)
        until = time.monotonic() + self._site.entry_lingers
        while left := anyio.run(self._listed) + self._site.left():
            waits_only = all("holders=()" in one for one in left)
            if not waits_only or time.monotonic() > until:
                raise Broken(f"left in the store: {left[:5]}")
            time.sleep(1.0)

    async def _prepare(self) -> None:
        if self._site.sets:
            async with connect(self._site.url) as locks:
                pool = locks.mutex_set(names.SET, lease=self._site.lease)
                for member in names.MEMBERS:
                    await pool.create(member)

    async def _sweep(self) -> None:
        """Acquire and release what several processes used: dead grants go."""
        async with connect(self._site.url, lease=self._site.lease) as locks:
            kinds = (("hot", names.HOT), ("long", names.LONG), ("passed", names.PASSED))
            for kind, count in kinds:
                for number in range(count):
                    async with locks.mutex(kind, number).acquire(EVERYBODY):
                        pass
            for number in range(names.SEMAPHORES):
                semaphore = locks.semaphore("permits", number, names.LIMIT)
                async with semaphore.acquire(EVERYBODY):
                    pass
            if self._site.sets:
                pool = locks.mutex_set(names.SET, lease=self._site.lease)
                for member in names.MEMBERS:
                    async with pool.acquire(member, EVERYBODY):
                        pass

    async def _listed(self) -> list[str]:
        async with connect(self._site.url) as locks:
            return [repr(info) async for info in locks.list()]

    # ------------------------------------------------------------------- figures

    def figures(self) -> dict[str, Any]:
        """Return what is known by now."""
        counts = totals(self._history)
        verdict = self._folder / "verdict.json"
        return {
            "ended": False,
            "seconds": round(time.monotonic() - self._begun),
            "operations": operations(counts),
            "calls": dict(counts),
            "faults": {
                kind: {
                    "count": effect.count,
                    "fence only": effect.fence_only,
                    "seconds in force": round(effect.in_force, 1),
                    "entered after": _spread(effect.entered),
                }
                for kind, effect in sorted(self._effects.items())
            },
            "everybody entered after": _spread(self._everybody),
            "bounds": [2 * self._site.lease + s for s in (SOMEBODY, EVERYBODY)],
            "processes": len(self._loops),
            "tasks": self._tasks,
            "processes started": self._started,
            "fairness bound": len(self._loops) * self._tasks,
            "judge": json.loads(verdict.read_text()) if verdict.exists() else {},
            "usage": {place: usage.figures() for place, usage in self._usage.items()},
            "problems": self.problems,
        }


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        "median": round(ordered[len(ordered) // 2], 3),
        "longest": round(ordered[-1], 3),
    }
