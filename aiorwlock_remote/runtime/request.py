"""``AcquireRequest``: what the machinery needs to know to acquire a lock."""

from __future__ import annotations

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.runtime.lease import LeaseTerms


@value
class AcquireRequest:
    """Value object: a request for one lock, with its options. Times in seconds."""

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
        if self.reason != "":
            check_reason(self.reason)

    def once(self, timeout: float | None, reason: str) -> AcquireRequest:
        if reason != "":
            check_reason(reason)
        return replace(self, timeout=timeout, reason=reason)
