"""A scenario, one round of it, and the worker processes that a round starts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

from benchmarks.harness.processes import children_on

REPLY_TIMEOUT = 90.0
"""Seconds after which a worker that owes a line is killed."""
EXIT_TIMEOUT = 10.0
"""Seconds that a worker may take to end."""


@dataclass(frozen=True)
class Job:
    """What a worker process has to do; ``RUN`` in ``worker.py`` lists the kinds.

    Attributes:
        family: Package whose ``adapters`` open the peer.
        seed: Seed of the worker's random choices.
        lease: Seconds.
        core: Processor core that the worker is bound to; None leaves it free.
        key: Resource; a ``{task}`` in it gives each task a resource of its own.
        cycles: Acquires of each task, where the job counts them.
        reads: Share of reads among the turns of each task; None: one mode only.
        writers: How many of the tasks write, if the others read.
        section: Seconds for which the lock is held.
        seconds: Duration of the job, where the job has one; of ``wait_together`` the
            time after which waiters are given up.
    """

    kind: str
    family: str
    peer: str
    loop: str
    url: str
    seed: int
    lease: float = 30.0
    core: int | None = None
    key: str = "key"
    mode: str = "mutex"
    tasks: int = 1
    cycles: int = 1
    reads: float | None = None
    writers: int | None = None
    section: float = 0.0
    seconds: float = 0.0


class JobOptions(TypedDict, total=False):
    """The fields of a ``Job`` that have a default."""

    lease: float
    core: int | None
    key: str
    mode: str
    tasks: int
    cycles: int
    reads: float
    writers: int
    section: float
    seconds: float


class Worker:
    """A worker process, seen by the benchmark that started the process."""

    def __init__(self, job: Job, program: Path | None = None) -> None:
        """Start the process; ``program`` replaces the worker in Python."""
        self._job = job
        command = [sys.executable, "-m", "benchmarks.harness.worker"]
        if program is not None:
            command = [str(program)]
        pipe = subprocess.PIPE
        with children_on(job.core):
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(job))], stdin=pipe, stdout=pipe, text=True
            )
        self.process_id = self._process.pid

    def send(self, word: object) -> None:
        """Write one line to the worker."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def receive(self, name: str, timeout: float = REPLY_TIMEOUT) -> dict[str, Any]:
        """Return the next line of the worker, which has to have the key ``name``.

        Raises:
            RuntimeError: The line has another key, or the worker ended or was silent
                for ``timeout`` seconds.
        """
        assert self._process.stdout is not None
        # readline() has no time-out: a worker that hangs would stop the whole run. The
        # kill ends the line, and with it the wait.
        began = time.monotonic()
        alarm = threading.Timer(timeout, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        reply: dict[str, Any] = json.loads(line) if line else {}
        if name not in reply:
            job = f"{self._job.kind} of {self._job.peer} on {self._job.loop}"
            if time.monotonic() - began >= timeout:
                raise RuntimeError(f"{job} was silent for {timeout:.0f} s")
            raise RuntimeError(f"{job} replied {line[:200]!r} instead of {name}")
        return reply

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close stdin and wait for the end; kill the process after a time-out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.communicate(timeout=EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def started(
    *jobs: Job, programs: dict[str, Path] | None = None
) -> Iterator[list[Worker]]:
    """Start a worker for each job; yield when all are ready; end all afterwards.

    Args:
        jobs: One for each worker.
        programs: Executables of the peers that are no worker in Python.
    """
    workers: list[Worker] = []
    try:
        # All are started before any is waited for: they start side by side.
        workers.extend(Worker(job, (programs or {}).get(job.peer)) for job in jobs)
        for worker in workers:
            worker.receive("ready")
        yield workers
    except BaseException:
        # A worker that waits for a lock of a dead worker would not end by itself.
        for worker in workers:
            worker.kill()
        raise
    finally:
        for worker in workers:
            worker.close()


class AnyServer(Protocol):
    """What the framework needs of a server; a suite's scenarios know more of theirs."""

    def empty(self) -> None:
        """Remove all locks of earlier rounds."""

    def url_for(self, peer: str, seed: int) -> str:
        """Return the URL at which a peer finds its locks in this round."""

    def connections(self) -> int:
        """Return how many connections clients have open."""

    def process_ids(self) -> list[int]:
        """Return the processes whose CPU time is the server's; none if unknown."""


S = TypeVar("S", bound=AnyServer)

Measured = dict[str, list[float]]
"""The values of each metric; the name of a metric ends with its unit."""


@dataclass(frozen=True)
class Round(Generic[S]):
    """One measurement of one peer on one event loop.

    Attributes:
        family: Package whose ``adapters`` open the peer.
        quick: Measure little: does the scenario still run?
        core: Core for what is sensitive to its place; None if none can be chosen.
        other_core: A second such core.
        programs: Executables of the peers that are no worker in Python.
        scale: Factor on durations and numbers of cycles, if not ``quick``.
        repetition: The number of the round among those of the peer, from 0.
    """

    family: str
    server: S
    peer: str
    loop: str
    seed: int
    quick: bool = False
    core: int | None = None
    other_core: int | None = None
    programs: dict[str, Path] = field(default_factory=dict)
    scale: float = 1.0
    repetition: int = 0

    def amount(self, quick: float, usual: float) -> float:
        """Return how many seconds to measure: few in a quick round, else scaled."""
        return quick if self.quick else usual * self.scale

    def count(self, quick: int, usual: int) -> int:
        """Return how many to measure: few in a quick round, else scaled."""
        return quick if self.quick else max(quick, round(usual * self.scale))

    def job(self, kind: str, **options: Unpack[JobOptions]) -> Job:
        """Return a job for the peer of this round."""
        url = self.server.url_for(self.peer, self.seed)
        return Job(kind, self.family, self.peer, self.loop, url, self.seed, **options)

    def workers(self, *jobs: Job) -> AbstractContextManager[list[Worker]]:
        """Start a worker for each job; see ``started``."""
        return started(*jobs, programs=self.programs)


Entrants = tuple[tuple[str, str], ...]
"""Pairs of peer and event loop."""


@dataclass(frozen=True)
class Scenario(Generic[S]):
    """A way to use locks, the entrants that are measured in it, and the measurement.

    Attributes:
        name: One word, for ``--scenario`` and the tables.
        title: What happens in the scenario, for people.
        measure: Measures one round.
        most_repetitions: As many suffice, as its figures are counts and sizes.
    """

    name: str
    title: str
    entrants: Entrants
    measure: Callable[[Round[S]], Measured]
    most_repetitions: int | None = None

    def repetitions(self, wanted: int) -> int:
        """Return how often each round is repeated."""
        most = self.most_repetitions
        return wanted if most is None else min(wanted, most)

    def rounds(self, repetitions: int) -> int:
        """Return how many rounds are measured, unless a peer is missing."""
        return len(self.entrants) * self.repetitions(repetitions)


def on_asyncio(*peers: str) -> Entrants:
    """Return entrants that are all measured on asyncio."""
    return tuple((peer, "asyncio") for peer in peers)
