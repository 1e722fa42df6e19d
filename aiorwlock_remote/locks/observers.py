"""Observers: who asks for which lock, how long that takes, and what becomes of it.

For metrics and traces; ``integrations.prometheus`` and ``integrations.otel`` are such.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Literal, Protocol, final

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import ModeName
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import ConfigurationError, LockTimeout, LossReason
from aiorwlock_remote.logs import guarded
from aiorwlock_remote.runtime.request import AcquireRequest

GrantEnd = LossReason | Literal["released", "moved", "detached", "dropped"]
"""How a grant ended.

``released``: given back. A reason of ``LockLost``: lost. ``moved``: it became the grant
of another mode, by ``upgrade`` or ``downgrade``. ``detached``: passed on. ``dropped``:
nothing referred to it any more.
"""

OBSERVER_FAILED = "an observer failed"

log: logging.Logger = logging.getLogger("aiorwlock_remote.observers")


@value
class Attempt:
    """Somebody wants a lock. ``timeout``: seconds; None: for ever; 0: only tries.

    ``resource_type`` is one of few names, fit for a label of a metric; ``resource`` is
    that and the id. ``mode``: ``read`` or ``write``.
    """

    resource_type: str
    resource: str
    mode: ModeName
    timeout: float | None
    reason: str


class AttemptObserver(Protocol):
    """What becomes of one attempt: ``failed``, or ``obtained`` and later ``ended``."""

    def obtained(self, resource: str, fence: int) -> None:
        """It holds the lock from now on."""

    def failed(self, error: BaseException | None) -> None:
        """It does not; ``error`` says why. None: it was not free, and only tried.

        A cancellation is one, too.
        """

    def ended(self, how: GrantEnd) -> None:
        """The grant is over."""


class Observer(Protocol):
    """Is told of each attempt of a ``Locks``: ``connect(…, observers=[…])``.

    Of mutexes, readers-writer locks, ``multi``, mutex sets, moves and adopted grants;
    not of row locks, occupied objects and the published calls.

    Runs in the event loop, must not block. ``begin_attempt`` and what tells how the
    attempt ended are called in the task that asks. What an observer raises is logged
    and changes nothing, ``SystemExit`` included.
    """

    def asked(self, attempt: Attempt) -> AttemptObserver | None:
        """Before anything is sent; who is to be told more, if anybody."""


@final
class AttemptObservers:
    """All who follow one attempt: ``with`` it is made, and failing is told."""

    __slots__ = ("_each",)

    def __init__(self, each: tuple[AttemptObserver, ...] = ()) -> None:
        self._each = each

    def obtained(self, resource: Resource, fence: int) -> None:
        """As ``AttemptObserver.obtained``."""
        for one in self._each:
            _call(one, "obtained", resource.label, fence)

    def failed(self, error: BaseException | None) -> None:
        """As ``AttemptObserver.failed``."""
        for one in self._each:
            _call(one, "failed", error)

    def ended(self, how: GrantEnd) -> None:
        """As ``AttemptObserver.ended``; once."""
        each, self._each = self._each, ()
        for one in each:
            _call(one, "ended", how)

    def __enter__(self) -> AttemptObservers:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self.failed(exc)


NO_OBSERVERS: AttemptObservers = AttemptObservers()


def begin_attempt(
    observers: Sequence[Observer], request: AcquireRequest
) -> AttemptObservers:
    """Tell them what is wanted."""
    if not observers:
        return NO_OBSERVERS
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

    for observer in observers:
        guarded(log, OBSERVER_FAILED, ask, observer)
    return AttemptObservers(tuple(followers))


def check_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """They, once and for all.

    Raises:
        ConfigurationError: one that is none; or one alone, not in a list.
    """
    given: object = observers
    if not isinstance(given, Iterable):
        raise ConfigurationError(
            what=f"{quoted(given)} is no sequence of observers", hint="observers=[…]"
        )
    found = tuple(observers)
    for observer in found:
        if not callable(getattr(observer, "asked", None)):
            raise ConfigurationError(what=f"{quoted(observer)} is no observer")
    return found


def _call(one: AttemptObserver, what: str, *told: object) -> None:
    def call() -> None:
        getattr(one, what)(*told)

    guarded(log, OBSERVER_FAILED, call)


def outcome_of(error: BaseException | None) -> str:
    """Return the word of metrics and traces for a request that obtained nothing.

    ``busy`` (no error), ``timeout``, ``cancelled``, or the name of the error's class.
    """
    if error is None:
        return "busy"
    if isinstance(error, LockTimeout):
        return "timeout"
    if not isinstance(error, Exception):  # asyncio's and trio's cancellations
        return "cancelled"
    return type(error).__name__
