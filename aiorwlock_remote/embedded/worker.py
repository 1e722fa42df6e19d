"""The thread that owns the writing connection.

Whatever has been queued while a batch of steps was carried out goes into the next one:
many tasks share one sync to disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import Connection
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
)
from aiorwlock_remote.ports import Host, Pending
from aiorwlock_remote.threads import finish_at_exit, running

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

MAX_BATCH = 256
BUSY_TIMEOUT = 5.0
AT_EXIT = 1.0
"""Seconds for what is queued when the process ends."""

StepJob = tuple[Resource, Command, Pending[Reply]]
Wakes = Callable[[Resource, tuple[str, ...]], object]
CallJob = tuple[Callable[[Connection], Any], Pending[Any]]


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
    """Carries out jobs in the order they came."""

    def __init__(
        self,
        connection: Connection,
        host: Host,
        name: str,
        wakes: Wakes,
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
        self._jobs: SimpleQueue[StepJob | CallJob | None] = SimpleQueue()
        self._closed = False
        self._thread = running(self._run, name)
        finish_at_exit(self)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """One command; may be carried out together with others."""
        pending: Pending[Reply] = Pending()
        if self._closed:
            pending.fail(BackendUnavailable(what="the store is closed"))
        else:
            self._jobs.put((resource, command, pending))
        return pending

    def call(self, function: Callable[[Connection], Any]) -> Pending[Any]:
        """Anything else to be done with the connection."""
        pending: Pending[Any] = Pending()
        if self._closed:
            pending.fail(BackendUnavailable(what="the store is closed"))
        else:
            self._jobs.put((function, pending))
        return pending

    def close(self) -> Pending[None]:
        """Finish what is queued, then close the connection."""
        closed = self.call(lambda connection: connection.close())
        self._closed = True
        self._jobs.put(None)
        return closed

    def finish(self) -> None:
        """As ``Finishes``."""
        done = threading.Event()
        if self._closed:
            self._thread.join(AT_EXIT)
        elif self._thread.is_alive():  # not so in a forked child
            self._jobs.put((lambda _: done.set(), Pending()))
            done.wait(AT_EXIT)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            steps: list[StepJob] = []
            following: StepJob | CallJob | None = job
            while following is not None and len(following) == 3:
                steps.append(following)
                if len(steps) == MAX_BATCH:
                    following = None
                    break
                try:
                    following = self._jobs.get_nowait()
                except Empty:
                    following = None
                    break
                if following is None:
                    self._jobs.put(None)
            if steps:
                self._steps(steps)
            if following is not None and len(following) == 2:
                self._call(following)

    def _steps(self, jobs: list[StepJob]) -> None:
        batch = [(resource, command) for resource, command, _ in jobs]
        outcomes: list[Step | Exception]
        if self._first is not None:
            self._first.wait()
        try:
            outcomes = self._connection.steps(batch, BUSY_TIMEOUT)
        except (BackendError, ConfigurationError) as exc:
            outcomes = [exc] * len(jobs)
        except Exception as exc:
            log.exception("steps failed")
            failed = BackendUnavailable(what=f"a batch of steps failed ({exc!r})")
            outcomes = [failed] * len(jobs)
        self._host.call_soon(self._stepped, jobs, outcomes)

    def _call(self, job: CallJob) -> None:
        function, pending = job
        try:
            outcome = function(self._connection)
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            self._host.call_soon(pending.fail, exc)
        else:
            self._host.call_soon(pending.resolve, outcome)

    def _stepped(self, jobs: list[StepJob], outcomes: list[Step | Exception]) -> None:
        for (resource, _, pending), outcome in zip(jobs, outcomes, strict=True):
            try:
                if isinstance(outcome, Exception):
                    pending.fail(outcome)
                else:
                    pending.resolve(outcome.reply)
                    if outcome.wakes:
                        self._wakes(resource, outcome.wakes)
            except Exception:  # one answer's trouble is not the others'
                log.exception("delivery failed")
