"""The thread that owns the writing connection.

Whatever has been queued while a batch of steps was carried out goes into the next one:
many tasks share one sync to disk.

It never waits inside for one record that another process keeps locked: a shell script
under ``flock``, a process that was stopped in the middle of a step, a lock service that
does not answer. What is asked of that record is put back, and the others go on
(``tests/backends/files/test_kept_locked.py``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from random import uniform
from typing import Any

from aiorwlock_remote._util.threads import flush_at_exit, start_thread
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import KeptLocked, LocalConnection
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, Pending

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

MAX_BATCH = 256
BUSY_TIMEOUT = 5.0
EXIT_TIMEOUT = 1.0
"""Seconds for what is queued when the process ends."""
MIN_KEPT_PAUSE, MAX_KEPT_PAUSE = 0.002, 0.02
"""Seconds, at most, until a record that was kept locked is tried again."""

WakeClients = Callable[[Resource, tuple[str, ...]], object]
Call = Callable[[LocalConnection], Any]


@dataclass(slots=True)
class StepJob:
    """One command. ``kept_since``: when its record was found kept locked first."""

    of: Resource
    command: Command
    pending: Pending[Reply]
    kept_since: float | None = None


@dataclass(slots=True)
class CallJob:
    """Anything else; in the order of a resource, or of the store as a whole."""

    of: Resource | None
    call: Call
    pending: Pending[Any]
    kept_since: float | None = None


Job = StepJob | CallJob


@dataclass(slots=True)
class PutBack:
    """Jobs of one resource, in order, that wait for its record until ``at``."""

    jobs: list[Job]
    at: float


class RenewalsFirst:
    """Lets renewals go before the worker's next batch, where both need one lock.

    A lock that is polled for, as SQLite's, goes to whoever asks first after it is free:
    a worker with a full queue takes it again each time, until leases end.
    """

    def __init__(self) -> None:
        """Nobody renews."""
        self._none = threading.Event()
        self._none.set()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """For the keeper's thread."""
        self._none.clear()
        try:
            yield
        finally:
            self._none.set()

    def wait(self) -> None:
        """For the worker: until nobody renews; bounded, as renewals are."""
        self._none.wait(BUSY_TIMEOUT)


class Worker:
    """Carries out jobs in the order they came, those of one resource at least."""

    def __init__(
        self,
        connection: LocalConnection,
        host: EventLoop,
        name: str,
        wakes: WakeClients,
        first: RenewalsFirst | None = None,
    ) -> None:
        """Takes the connection over, opened or not. ``name``: of the thread.

        ``wakes(resource, gates)``: called in the loop, these have something to claim.
        ``first``: renewals that need the same lock of the system.

        Raises:
            BackendUnavailable: no thread could be started.
        """
        self._connection = connection
        self._first = first
        self._host = host
        self._wakes = wakes
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._put_back: dict[Resource | None, PutBack] = {}
        self._closed = False
        self._ended: Pending[None] = Pending()
        self._thread = start_thread(self._run, name)
        flush_at_exit(self)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """One command; may be carried out together with others."""
        return self._asked(StepJob(resource, command, Pending()))

    def call(self, function: Call, of: Resource | None = None) -> Pending[Any]:
        """Anything else to be done with the connection; after the steps of ``of``."""
        return self._asked(CallJob(of, function, Pending()))

    def close(self) -> Pending[None]:
        """Finish what is queued, then close the connection."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        return self._ended

    def finish(self) -> None:
        """As ``FlushesAtExit``."""
        done = threading.Event()

        def all_done(_: LocalConnection) -> None:
            if any(of is not None for of in self._put_back):
                raise KeptLocked(what="steps are left")
            done.set()

        if self._closed:
            self._thread.join(EXIT_TIMEOUT)
        elif self._thread.is_alive():  # not so in a forked child
            self._jobs.put(CallJob(None, all_done, Pending()))
            done.wait(EXIT_TIMEOUT)

    def _asked(self, job: Job) -> Pending[Any]:
        if self._closed:
            job.pending.set_exception(BackendUnavailable(what="the store is closed"))
        else:
            self._jobs.put(job)
        return job.pending

    def _run(self) -> None:
        ending = False
        while not ending or self._put_back:
            jobs = self._gathered()
            ending = ending or None in jobs
            steps: list[StepJob] = []
            for job in jobs:
                if job is None:
                    continue
                if job.of in self._put_back:  # it must not overtake what came before
                    self._put_back[job.of].jobs.append(job)
                elif isinstance(job, StepJob):
                    steps.append(job)
                else:
                    self._steps(steps)
                    steps = []
                    self._call(job)
            self._steps(steps)
        self._call(CallJob(None, lambda one: one.close(), self._ended))

    def _gathered(self) -> list[Job | None]:
        """What is to be tried now. Waits until there is something.

        None: no more comes.
        """
        jobs: list[Job | None] = []
        left: float | None = None
        if self._put_back:
            first = min(waiting.at for waiting in self._put_back.values())
            left = max(0.0, first - self._host.clock.now())
        try:
            jobs.append(self._jobs.get(timeout=left))
            while len(jobs) < MAX_BATCH:
                jobs.append(self._jobs.get_nowait())
        except Empty:
            pass
        if not self._put_back:
            return jobs
        now = self._host.clock.now()
        due = [of for of, waiting in self._put_back.items() if waiting.at <= now]
        return [job for of in due for job in self._put_back.pop(of).jobs] + jobs

    def _steps(self, jobs: list[StepJob]) -> None:
        if not jobs:
            return
        batch = [(job.of, job.command) for job in jobs]
        outcomes: list[Step | Exception]
        if self._first is not None:
            self._first.wait()
        try:
            outcomes = self._connection.steps(batch, BUSY_TIMEOUT)
        except (BackendError, ConfigurationError) as exc:
            outcomes = [exc] * len(jobs)
        except Exception as exc:  # noqa: BLE001 - it is logged
            log_event(log, "steps failed", logging.ERROR, exc_info=True)
            failed = BackendUnavailable(what=f"a batch of steps failed ({exc!r})")
            outcomes = [failed] * len(jobs)
        told = [
            (job, outcome)
            for job, outcome in zip(jobs, outcomes, strict=True)
            if not (isinstance(outcome, KeptLocked) and self._may_wait(job))
        ]
        self._host.call_soon(self._stepped, told)

    def _call(self, job: CallJob) -> None:
        try:
            outcome = job.call(self._connection)
        except KeptLocked as exc:
            if not self._may_wait(job):
                self._host.call_soon(job.pending.set_exception, exc)
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            self._host.call_soon(job.pending.set_exception, exc)
        else:
            self._host.call_soon(job.pending.set_result, outcome)

    def _may_wait(self, job: Job) -> bool:
        """Put it back; False: its record has been kept locked for too long."""
        now = self._host.clock.now()
        if job.kept_since is None:
            job.kept_since = now
        kept = now - job.kept_since
        if kept >= BUSY_TIMEOUT:
            return False
        waiting = self._put_back.setdefault(job.of, PutBack([], now))
        if not waiting.jobs:
            waiting.at += uniform(0.1, 1.0) * min(
                MAX_KEPT_PAUSE, max(MIN_KEPT_PAUSE, kept / 50)
            )
        waiting.jobs.append(job)
        return True

    def _stepped(self, told: list[tuple[StepJob, Step | Exception]]) -> None:
        for job, outcome in told:
            try:
                if isinstance(outcome, Exception):
                    job.pending.set_exception(outcome)
                else:
                    job.pending.set_result(outcome.reply)
                    if outcome.wakes:
                        self._wakes(job.of, outcome.wakes)
            except Exception:  # noqa: BLE001 - one answer's trouble is its own
                log_event(log, "delivery failed", logging.ERROR, exc_info=True)
