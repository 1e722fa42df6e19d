"""What a caller asks for, and the claim of each attempt: a fresh ticket."""

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
"""Task names whose ``Requester`` is kept."""
MAX_TASK_NAME_BYTES = 200


@value
class AcquireRequest:
    """What a caller wants; ``OptionArgs`` explains the options. Times in seconds."""

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
        """Refuse a reason that a store cannot hold or a terminal cannot show."""
        if self.reason != "":
            check_reason(self.reason)

    def once(self, timeout: float | None, reason: str) -> AcquireRequest:
        """Return a copy for one attempt, with its own timeout and reason."""
        if reason != "":
            check_reason(reason)
        return replace(self, timeout=timeout, reason=reason)


class ClaimFactory:
    """Makes claims in the name of the running task."""

    def __init__(self, loop: TaskEventLoop) -> None:
        self._loop = loop
        self._hostname = socket.gethostname()
        # Read once: a forked child may use no claim of its parent's anyway.
        self._pid = os.getpid()
        self._without_reason = lru_cache(CACHE_SIZE)(self._requester)

    def claim(self, request: AcquireRequest) -> Claim:
        """Return a claim with a fresh ticket, 128 random bits."""
        lease = request.terms.lease
        reason = request.reason
        return Claim(
            random_id().hex(),
            None if lease is None else micros(lease),
            self.requester(reason)
            if reason
            else self._without_reason(self._loop.task_name()),
            micros(request.lock_delay) if request.lock_delay else 0,
        )

    def requester(self, reason: str = "") -> Requester:
        """Return host, process and task of the caller, as other processes see them."""
        return self._requester(self._loop.task_name(), reason)

    def _requester(self, task: str, reason: str = "") -> Requester:
        return Requester(
            self._hostname, self._pid, one_line(task, MAX_TASK_NAME_BYTES), reason
        )
