"""The thread that owns the writing connection of a local store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import uniform
from typing import Any

from aiorwlock_remote._util.native import Empty, Event, SimpleQueue
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
"""Jobs that are carried out together at most."""
BUSY_TIMEOUT = 5.0
"""Seconds for which a job waits for a store or record that another process locks."""
EXIT_TIMEOUT = 1.0
"""Seconds for the queued jobs when the process ends."""
MIN_KEPT_PAUSE, MAX_KEPT_PAUSE = 0.002, 0.02
"""Seconds, at most, until a record that was kept locked is tried again."""

WakeClients = Callable[[Resource, tuple[str, ...]], object]
Call = Callable[[LocalConnection], Any]


@dataclass(slots=True)
class StepJob:
    """A queued command. ``kept_since``: when its record was found locked, or None."""

    of: Resource
    command: Command
    pending: Pending[Reply]
    kept_since: float | None = None


@dataclass(slots=True)
class CallJob:
    """A queued ``call(connection)``, run in order with jobs of the resource ``of``."""

    of: Resource | None
    call: Call
    pending: Pending[Any]
    kept_since: float | None = None


Job = StepJob | CallJob


@dataclass(slots=True)
class PutBack:
    """Jobs of one resource, to be retried when the monotonic clock shows ``at``."""

    jobs: list[Job]
    at: float


class RenewalsFirst:
    """Gives renewals of leases precedence over the steps of the worker thread.

    While leases are renewed, the worker thread begins no step. Used by stores whose
    steps and renewals all need the same lock of the system, as that of SQLite's file.
    """

    # A lock that is polled for, as SQLite's, goes to the thread that asks first after
    # it is free. A worker with a full queue would take it again each time, until leases
    # end (test_renewals_first.py).

    def __init__(self) -> None:
        self._none = Event()
        self._none.set()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Context for a renewal by the lease keeper; the worker waits meanwhile."""
        self._none.clear()
        try:
            yield
        finally:
            self._none.set()

    def wait(self) -> None:
        """Wait until no renewal is under way, at most ``BUSY_TIMEOUT`` seconds."""
        self._none.wait(BUSY_TIMEOUT)


class Worker:
    """Carries out jobs on one connection, in a thread of its own.

    Jobs that arrive while a batch is carried out form the next batch: many tasks share
    one sync to disk.

    Invariants, each with the test that fails without it (in ``tests/backends/files``
    where no other folder is named):

    * The jobs of one resource are carried out in the order of the calls, also when its
      record is kept locked and they are put back (tests/embedded/test_worker_order.py:
      test_a_command_does_not_overtake_one_that_was_put_back).
    * A record that another process keeps locked (a shell script under ``flock``, a
      stopped process, a silent lock service) delays the jobs of no other resource
      (test_mutex_file.py: test_unrelated_locks_go_on).
    * A job waits at most ``BUSY_TIMEOUT`` seconds for a locked record
      (test_mutex_file.py: test_a_request_is_bounded_and_names_the_file).
    * A renewal that is under way goes before the next batch, where both need one lock
      (tests/embedded/test_renewals_first.py:
      test_a_step_waits_for_the_renewal_that_has_begun).
    * Queued jobs are carried out even if the process ends without closing its store
      (tests/embedded/test_at_exit.py: test_a_block_is_left_by_sys_exit).
    """

    def __init__(
        self,
        connection: LocalConnection,
        loop: EventLoop,
        name: str,
        wakes: WakeClients,
        first: RenewalsFirst | None = None,
    ) -> None:
        """Start the thread ``name``, which uses and closes ``connection``.

        ``wakes(resource, client_ids)`` is called in ``loop`` when these clients may
        claim the resource. ``first``, if given, delays batches while a renewal runs.
        """
        self._connection = connection
        self._first = first
        self._loop = loop
        self._wakes = wakes
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._put_back: dict[Resource | None, PutBack] = {}
        self._closed = False
        self._ended: Pending[None] = Pending()
        self._thread = start_thread(self._run, name)
        flush_at_exit(self)

    @property
    def state(self) -> str:
        """The state of the connection: open or closed."""
        return "closed" if self._closed else "open"

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Queue a command on a resource; the reply is settled in the event loop."""
        return self._queue(StepJob(resource, command, Pending()))

    def call(self, function: Call, of: Resource | None = None) -> Pending[Any]:
        """Queue ``function(connection)`` after earlier jobs of the resource ``of``."""
        return self._queue(CallJob(of, function, Pending()))

    def close(self) -> Pending[None]:
        """Finish the queued jobs, close the connection, and end the thread."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        return self._ended

    def finish(self) -> None:
        # A release that was sent is carried out although the process ends: otherwise
        # others wait until the lease ends (test_at_exit.py).
        done = Event()

        def all_done(_: LocalConnection) -> None:
            if any(of is not None for of in self._put_back):
                raise KeptLocked(what="steps are left")
            done.set()

        if self._closed:
            self._thread.join(EXIT_TIMEOUT)
        elif self._thread.is_alive():  # a forked child has no such thread
            self._jobs.put(CallJob(None, all_done, Pending()))
            done.wait(EXIT_TIMEOUT)

    def _queue(self, job: Job) -> Pending[Any]:
        if self._closed:
            job.pending.set_exception(BackendUnavailable(what="the store is closed"))
        else:
            self._jobs.put(job)
        return job.pending

    def _run(self) -> None:
        ending = False
        while not ending or self._put_back:
            jobs = self._next_jobs()
            ending = ending or None in jobs
            steps: list[StepJob] = []
            for job in jobs:
                if job is None:
                    continue
                if job.of in self._put_back:  # it must not overtake the jobs before it
                    self._put_back[job.of].jobs.append(job)
                elif isinstance(job, StepJob):
                    steps.append(job)
                else:
                    # The call comes after the steps that were queued before it.
                    self._steps(steps)
                    steps = []
                    self._call(job)
            self._steps(steps)
        self._call(CallJob(None, lambda one: one.close(), self._ended))

    def _next_jobs(self) -> list[Job | None]:
        # Returns the jobs to try now; waits until there is one. None ends the queue.
        jobs: list[Job | None] = []
        left: float | None = None
        if self._put_back:
            first = min(waiting.at for waiting in self._put_back.values())
            left = max(0.0, first - self._loop.clock.now())
        try:
            jobs.append(self._jobs.get(timeout=left))
            while len(jobs) < MAX_BATCH:
                jobs.append(self._jobs.get_nowait())
        except Empty:
            pass
        if not self._put_back:
            return jobs
        now = self._loop.clock.now()
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
            log_event(log, "steps_failed", logging.ERROR, exc_info=True)
            failed = BackendUnavailable(what=f"a batch of steps failed ({exc!r})")
            outcomes = [failed] * len(jobs)
        answers = [
            (job, outcome)
            for job, outcome in zip(jobs, outcomes, strict=True)
            if not (isinstance(outcome, KeptLocked) and self._postpone(job))
        ]
        self._loop.call_soon(self._deliver, answers)

    def _call(self, job: CallJob) -> None:
        try:
            outcome = job.call(self._connection)
        except KeptLocked as exc:
            if not self._postpone(job):
                self._loop.call_soon(job.pending.set_exception, exc)
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            self._loop.call_soon(job.pending.set_exception, exc)
        else:
            self._loop.call_soon(job.pending.set_result, outcome)

    def _postpone(self, job: Job) -> bool:
        # Puts the job back; returns False if its record was locked for too long.
        now = self._loop.clock.now()
        if job.kept_since is None:
            job.kept_since = now
        kept = now - job.kept_since
        if kept >= BUSY_TIMEOUT:
            return False
        waiting = self._put_back.setdefault(job.of, PutBack([], now))
        if not waiting.jobs:
            # About 2 % of the time the record was locked so far, within the limits.
            longest = min(MAX_KEPT_PAUSE, max(MIN_KEPT_PAUSE, kept / 50))
            waiting.at += uniform(0.1, 1.0) * longest
        waiting.jobs.append(job)
        if log.isEnabledFor(logging.DEBUG):
            label = None if job.of is None else job.of.label
            log_event(
                log, "step_postponed", logging.DEBUG, resource=label, locked_for=kept
            )
        return True

    def _deliver(self, answers: list[tuple[StepJob, Step | Exception]]) -> None:
        for job, outcome in answers:
            try:
                if isinstance(outcome, Exception):
                    job.pending.set_exception(outcome)
                else:
                    job.pending.set_result(outcome.reply)
                    if outcome.wakes:
                        self._wakes(job.of, outcome.wakes)
            except Exception:  # noqa: BLE001 - the other answers must be given
                log_event(log, "delivery_failed", logging.ERROR, exc_info=True)
