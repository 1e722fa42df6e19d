"""Observers of attempts and grants, for metrics and traces.

``integrations.prometheus`` and ``integrations.otel`` contain such observers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, final, runtime_checkable

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import ModeName
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockTimeout,
    LossReason,
)
from aiorwlock_remote.logs import guarded
from aiorwlock_remote.runtime.lease import AcquireRequest
from aiorwlock_remote.runtime.lease_keeper import RenewalOutcome
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import WakeCause

GrantEnd = LossReason | Literal["released", "moved", "detached", "dropped"]
"""How a grant ended: a reason of ``LockLost``, or one of these.

``moved``: replaced by a grant of another mode (``upgrade``, ``downgrade``).
``detached``: given away. ``dropped``: nothing referred to its ``Held`` any more.
"""

OBSERVER_FAILED = "observer_failed"

log: logging.Logger = logging.getLogger("aiorwlock_remote.observers")


@value
class Attempt:
    """Value object: a request for a lock, before it is sent to the store.

    Attributes:
        resource_type: the type alone; as there are few, it fits as a label of a metric.
        resource: the type with the id, ``type/id``.
        mode: ``read`` or ``write``.
        timeout: seconds to wait; None: for ever; 0: only try.
    """

    resource_type: str
    resource: str
    mode: ModeName
    timeout: float | None
    reason: str


class AttemptObserver(Protocol):
    """Follower of one attempt, returned by ``Observer.asked``.

    Either ``failed`` is called once; or ``obtained``, and later ``ended``.
    """

    def obtained(self, resource: str, fence: int) -> None:
        """Called when the lock ``resource`` (``type/id``) has been obtained."""

    def failed(self, error: BaseException | None) -> None:
        """Called when the attempt has ended without the lock.

        Args:
            error: why, also a cancellation; None: the lock was only tried, and is not
                free.
        """

    def ended(self, how: GrantEnd) -> None:
        """Called when the grant has ended. ``how``: ``released``, ``moved`` (upgraded
        or downgraded), ``detached``, ``dropped``, or the reason of its loss.
        """


class Observer(Protocol):
    """Observer of all attempts of a ``Locks``: ``connect(…, observers=[…])``.

    Observed are requests for mutexes, readers-writer locks, ``multi`` and mutex sets,
    upgrades, downgrades and adopted grants; not row locks, occupied objects and the
    calls with a ticket of your own (``acquire_mutex_lock`` …).

    Methods are called in the event loop and must not block; ``asked``, ``obtained`` and
    ``failed`` in the task that requests the lock. What an observer raises, even
    ``SystemExit``, is logged and changes nothing.
    """

    def asked(self, attempt: Attempt) -> AttemptObserver | None:
        """Called with each attempt, before its request is sent.

        Return an object that is called with the outcome; None: no call is needed.
        """


@runtime_checkable
class StoreObserver(Protocol):
    """Observer of requests, renewals and wake-ups: three methods more that an
    ``Observer`` may have.

    What these methods raise is logged and changes nothing; they must not block.
    """

    def replied(
        self, command: str, seconds: float, error: BaseException | None
    ) -> None:
        """Called in the event loop when a request to the store has ended.

        Args:
            command: its kind: ``Acquire``, ``Release``, ``Withdraw``, ``Renew``, ….
            seconds: from sending the request to its reply.
            error: what it failed with; None: the store replied.
        """

    def renewed(
        self, outcome: RenewalOutcome, grants: int, error: BaseException | None
    ) -> None:
        """Called in a thread of the library when grants were renewed in the background.

        Args:
            outcome: ``renewed``; ``failed``, and is repeated; ``gone``: the store no
                longer has the grants, which are lost.
            grants: how many grants had this outcome.
            error: what a renewal ``failed`` with, else None.
        """

    def woken(self, cause: WakeCause) -> None:
        """Called in the event loop when a task that waits asks again, or enters.

        ``cause``: ``message``, ``pushed``, ``timer`` or ``poll``, as
        ``Statistics.wakeups`` counts them.
        """


def observe_store(observers: Sequence[Observer], client: StoreClient) -> None:
    """Have ``client`` report to those observers that are ``StoreObserver``, too."""
    told = [one for one in observers if isinstance(one, StoreObserver)]
    if not told:
        return

    def replied(command: str, seconds: float, error: BaseException | None) -> None:
        for one in told:
            guarded(log, OBSERVER_FAILED, one.replied, command, seconds, error)

    def renewed(
        outcome: RenewalOutcome, grants: int, error: BaseException | None
    ) -> None:
        for one in told:
            guarded(log, OBSERVER_FAILED, one.renewed, outcome, grants, error)

    def woken(cause: WakeCause) -> None:
        for one in told:
            guarded(log, OBSERVER_FAILED, one.woken, cause)

    client.on_reply = replied
    client.on_wake = woken
    client.keeper.report_renewals(renewed)


@final
class AttemptObservers:
    """Passes each call on to all followers of one attempt. As a context manager it
    calls ``failed`` with the error that leaves the block.
    """

    __slots__ = ("_each",)

    def __init__(self, each: tuple[AttemptObserver, ...] = ()) -> None:
        self._each = each

    def obtained(self, resource: Resource, fence: int) -> None:
        for one in self._each:
            _call(one, "obtained", resource.label, fence)

    def failed(self, error: BaseException | None) -> None:
        for one in self._each:
            _call(one, "failed", error)

    def ended(self, how: GrantEnd) -> None:
        # Only the first call counts: a grant may be released and found lost at the
        # same time.
        each, self._each = self._each, ()
        for one in each:
            _call(one, "ended", how)

    def __enter__(self) -> AttemptObservers:
        return self

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        exc = exc_info[1]
        if exc is not None:
            self.failed(exc)


NO_OBSERVERS: AttemptObservers = AttemptObservers()


def begin_attempt(
    observers: Sequence[Observer], request: AcquireRequest
) -> AttemptObservers:
    """Call ``asked`` of each observer; return the followers they returned."""
    resource = request.resource
    attempt = Attempt(
        resource_type=resource.shown[0],
        resource=resource.label,
        mode=request.mode.shown,
        timeout=request.timeout,
        reason=request.reason,
    )
    followers: list[AttemptObserver] = []

    def ask(observer: Observer) -> None:
        following = observer.asked(attempt)
        if following is not None:
            followers.append(following)

    # Guarded one by one: an observer that fails must not hide the attempt from others.
    for observer in observers:
        guarded(log, OBSERVER_FAILED, ask, observer)
    return AttemptObservers(tuple(followers))


def check_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return ``observers`` as a tuple. Raise ``ConfigurationError`` if the argument is
    not a sequence, or an observer has no method ``asked``.
    """
    given: object = observers
    if not isinstance(given, Iterable):
        raise ConfigurationError(
            what=f"observers={quoted(given)} is not a sequence",
            hint="observers=[…]",
        )
    found = tuple(observers)
    for observer in found:
        if not callable(getattr(observer, "asked", None)):
            raise ConfigurationError(
                what=f"{quoted(observer)} has no method asked(): not an observer"
            )
    return found


def _call(one: AttemptObserver, what: str, *args: object) -> None:
    # A lambda: getting the attribute may raise as well, in an observer of the user's.
    guarded(log, OBSERVER_FAILED, lambda: getattr(one, what)(*args))


def is_unreachable(error: BaseException | None) -> bool:
    """Return whether a request failed because the store cannot be reached."""
    return isinstance(error, BackendUnavailable)


def outcome_of(error: BaseException | None) -> str:
    """Return the label, in metrics and traces, of an attempt that obtained nothing. It
    is ``busy`` without an error, ``timeout``, ``cancelled``, or the name of the error's
    class.
    """
    if error is None:
        return "busy"
    if isinstance(error, LockTimeout):
        return "timeout"
    if not isinstance(error, Exception):  # asyncio's and trio's cancellations
        return "cancelled"
    return type(error).__name__
