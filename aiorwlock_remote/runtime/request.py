"""What a caller asks for, and the fresh ticket of each attempt."""

from __future__ import annotations

import os
import socket
from functools import lru_cache

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.core.commands import Claim
from aiorwlock_remote.core.doorman import Requester
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import check_reason, one_line
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.lease import LeaseTerms

CACHE_SIZE = 1024
MAX_TASK_NAME_BYTES = 200
"""Bytes of a task's name."""


@value
class AcquireRequest:
    """What a caller wants. Seconds."""

    resource: Resource
    mode: Mode
    policy: Policy
    terms: LeaseTerms
    timeout: float | None = None
    reason: str = ""
    slow_wait: float | None = None
    max_waiters: int | None = None
    lock_delay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a reason that a store cannot hold, or that others cannot be shown."""
        if self.reason != "":
            check_reason(self.reason)

    def once(self, timeout: float | None, reason: str) -> AcquireRequest:
        """The same, for one attempt."""
        if reason != "":
            check_reason(reason)
        return replace(self, timeout=timeout, reason=reason)


class ClaimFactory:
    """Makes claims in the name of the running task."""

    def __init__(self, host: TaskEventLoop) -> None:
        self._host = host
        self._hostname = socket.gethostname()
        self._pid = os.getpid()  # a forked child must not use it
        self._unexplained = lru_cache(CACHE_SIZE)(self._called)

    def claim(self, request: AcquireRequest) -> Claim:
        """A fresh ticket, 128 random bits."""
        lease = request.terms.lease
        reason = request.reason
        return Claim(
            random_id().hex(),
            None if lease is None else micros(lease),
            self.who(reason) if reason else self._unexplained(self._host.task_name()),
            micros(request.lock_delay) if request.lock_delay else 0,
        )

    def who(self, reason: str = "") -> Requester:
        """This task, for people."""
        return self._called(self._host.task_name(), reason)

    def _called(self, task: str, reason: str = "") -> Requester:
        return Requester(
            self._hostname, self._pid, one_line(task, MAX_TASK_NAME_BYTES), reason
        )
