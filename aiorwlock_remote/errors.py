"""Every error this library raises, as one tree.

::

    LockError
    ├── LockTimeout (TimeoutError)          not obtained in time
    ├── LockBusy                            refused at once: the object is in use
    ├── LockLost                            the grant ended before its holder was done
    ├── NotOwner (RuntimeError)             release or move of a grant that is not held
    ├── WouldDeadlock (RuntimeError)        this task holds the resource already
    ├── UpgradeConflict                     another reader is already waiting to upgrade
    ├── StaleFence                          the resource has seen a newer grant's fence
    ├── BadFence (ValueError)               a value that cannot be a fence
    ├── TooManyWaiters                      the resource's queue is full
    ├── AcquireUncertain                    the store never said whether it granted
    ├── Closed                              closed, forked or of another loop
    ├── ConfigurationError (ValueError)     a bad name, URL, option or number
    └── BackendError                        the store failed
        ├── BackendUnavailable (ConnectionError)
        ├── BadRecord                       a stored record is not ours or not readable
        └── Unsupported                     version, permission or schema does not fit

Programs read the fields; ``what`` and ``hint`` are for people. Errors survive pickling,
and never contain a ticket or a password. ``status_hint`` is the HTTP status with which
a web handler would usually answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

__all__ = [
    "AcquireUncertain",
    "BackendError",
    "BackendUnavailable",
    "BadFence",
    "BadRecord",
    "Closed",
    "ConfigurationError",
    "LockBusy",
    "LockError",
    "LockLost",
    "LockTimeout",
    "LossReason",
    "NotOwner",
    "StaleFence",
    "TooManyWaiters",
    "Unsupported",
    "UpgradeConflict",
    "WouldDeadlock",
]

Lacks = Literal["", "tables", "rights"]
"""What ``Unsupported`` says is lacking."""

LossReason = Literal["expired", "stolen", "forced", "unreachable", "stalled"]
"""Why a grant ended early.

``expired``: its lease ran out; or its record was deleted, and another one made since.
``stolen``: the store has another value where ours was. ``forced``: it was broken
(``force_release`` or a plain delete), or the store lost it. ``unreachable``: it could
not be renewed before its local deadline. ``stalled``: the event loop hung for longer
than ``max_stall``, or the grant was held for longer than ``max_hold``.
"""


def _rebuild(cls: type[LockError], state: dict[str, Any]) -> LockError:
    return cls(**state)


@dataclass(eq=False)
class LockError(Exception):
    """Root of all errors that this library raises."""

    status_hint: ClassVar[int] = 500

    if not TYPE_CHECKING:  # checkers know that of Exception, a variable

        @property
        def args(self) -> tuple[Any, ...]:
            """The values of the positional fields.

            Celery stores an error as its class and ``args``, and makes it anew of them.
            """
            given = (field.name for field in fields(self) if not field.kw_only)
            return tuple(getattr(self, name) for name in given)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuild, (type(self), state)

    def __str__(self) -> str:
        what, hint = getattr(self, "what", ""), getattr(self, "hint", "")
        if not what:
            return (self.__doc__ or type(self).__name__).splitlines()[0]
        return f"{what}; {hint}" if hint else what

    def __repr__(self) -> str:
        inside = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{type(self).__name__}({inside})"


@dataclass(eq=False, repr=False)
class LockTimeout(LockError, TimeoutError):
    """The lock was not obtained within ``timeout`` seconds.

    Attributes:
        holders: Descriptions of the holders at the last reply of the store, such as
            ``"write 4f1c… web-3/71: refund"``.
        retry_after: Seconds until the store expects a change (an expiry), or None.
        unanswered: A request was under way all the time, and the store did not reply.
    """

    status_hint: ClassVar[int] = 423
    resource: str = ""
    mode: str = ""
    timeout: float = 0.0
    holders: tuple[str, ...] = ()
    retry_after: float | None = None
    unanswered: bool = False

    def __str__(self) -> str:
        by = f", held by {'; '.join(self.holders)}" if self.holders else ""
        if self.unanswered:
            by = ": the store did not reply"
        return f"{self.resource} ({self.mode}) not obtained in {self.timeout:g} s{by}"


@dataclass(eq=False, repr=False)
class LockBusy(LockError):
    """The object is in use, and the caller asked not to wait."""

    status_hint: ClassVar[int] = 423
    resource: str = ""
    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.resource} is in use by {'; '.join(self.holders) or 'another'}"


@dataclass(eq=False, repr=False)
class LockLost(LockError):
    """The grant ended before its holder was done; the work was not protected."""

    status_hint: ClassVar[int] = 503
    reason: LossReason = "expired"
    resource: str = ""
    mode: str = ""
    fence: int = 0

    def __str__(self) -> str:
        return f"{self.resource} ({self.mode}, fence {self.fence}) lost: {self.reason}"


@dataclass(eq=False, repr=False)
class NotOwner(LockError, RuntimeError):
    """The grant is no longer held: released, moved, given away or never granted."""

    resource: str = ""
    action: str = ""

    def __str__(self) -> str:
        what = f"cannot {self.action or 'use'} {self.resource}: "
        if self.action == "leave":
            hint = "await acquire() gives a Held that any task may release()"
            return f"{what}this task has not entered it; {hint}"
        return f"{what}released, moved or given away before, or not of this lock"


@dataclass(eq=False, repr=False)
class WouldDeadlock(LockError, RuntimeError):
    """This task holds the resource already, and would wait for itself for ever."""

    resource: str = ""
    held_mode: str = ""

    def __str__(self) -> str:
        return (
            f"this task holds {self.resource} ({self.held_mode}) already; locks are "
            "not re-entrant: pass the Held it has"
        )


@dataclass(eq=False, repr=False)
class UpgradeConflict(LockError):
    """Another reader is already waiting to upgrade; one of the two must release."""

    status_hint: ClassVar[int] = 409
    resource: str = ""

    def __str__(self) -> str:
        return f"another reader of {self.resource} is upgrading; release and retry"


@dataclass(eq=False, repr=False)
class StaleFence(LockError):
    """A protected resource has seen the fence of a newer grant; nothing was changed.

    ``highest``: the newest fence that the resource has seen; None if it is not known.
    """

    status_hint: ClassVar[int] = 412
    resource: str = ""
    fence: int = 0
    highest: int | None = None

    def __str__(self) -> str:
        seen = "a higher one" if self.highest is None else str(self.highest)
        return f"{self.resource}: fence {self.fence} is too old, it has seen {seen}"


@dataclass(eq=False, repr=False)
class BadFence(LockError, ValueError):
    """A value that cannot be a fence: missing, not a number, or out of range."""

    status_hint: ClassVar[int] = 400
    what: str = ""


@dataclass(eq=False, repr=False)
class TooManyWaiters(LockError):
    """The queue of the resource is as long as ``max_waiters`` allows."""

    status_hint: ClassVar[int] = 503
    resource: str = ""
    limit: int = 0

    def __str__(self) -> str:
        return f"{self.resource} has {self.limit} waiters already"


@dataclass(eq=False, repr=False)
class AcquireUncertain(LockError):
    """The store never said whether it granted the lock.

    If it did, no task uses the grant. The acquire is withdrawn in the background until
    the store has replied (except row locks without a lease, which have no ticket). The
    grant ends with its ``lease`` at the latest (seconds; None: only ``force_release``
    ends it).
    """

    status_hint: ClassVar[int] = 503
    resource: str = ""
    holder: str = ""
    lease: float | None = None

    def __str__(self) -> str:
        end = "until forced" if self.lease is None else f"for {self.lease:g} s at most"
        return (
            f"{self.resource}: the store never said whether it granted the lock; "
            f"if so, {self.holder} holds it {end}, unused"
        )


@dataclass(eq=False, repr=False)
class Closed(LockError):
    """The ``Locks`` is closed, belongs to another loop, or was opened before a fork."""

    status_hint: ClassVar[int] = 503
    reason: Literal["closed", "forked", "other loop"] = "closed"

    def __str__(self) -> str:
        return {
            "closed": "this Locks is closed",
            "forked": "this Locks was opened before a fork; connect() in the child",
            "other loop": "this Locks belongs to another event loop; connect() here",
        }[self.reason]


@dataclass(eq=False, repr=False)
class ConfigurationError(LockError, ValueError):
    """A name, URL, option or number is not allowed; nothing was changed.

    ``refused``: ``"value"`` if a database refused a value for one of its columns: a
    text that is too long, or a key of another type; else ``""``.
    """

    what: str = ""
    hint: str = ""
    refused: Literal["", "value"] = field(default="", kw_only=True)


@dataclass(eq=False, repr=False)
class BackendError(LockError):
    """The store failed.

    Attributes:
        nothing_done: True: the store has certainly not carried out the request. False:
            it may have done so, in part or whole, and a grant that was asked for is
            withdrawn.
        retry_after: Seconds after which the store, which works, may accept the request:
            an acquire waits for that within its ``timeout``. None: no retry will help.
    """

    status_hint: ClassVar[int] = 503
    what: str = ""
    hint: str = ""
    nothing_done: bool = False
    retry_after: float | None = field(default=None, kw_only=True)


@dataclass(eq=False, repr=False)
class BackendUnavailable(BackendError, ConnectionError):
    """The store cannot be reached or does not reply.

    ``replicas``: how many replicas have the grant, if fewer than ``min_replicas`` (the
    grant is then released); else None.
    """

    replicas: int | None = None


@dataclass(eq=False, repr=False)
class BadRecord(BackendError):
    """A record in the store under our name is not ours or cannot be read."""


@dataclass(eq=False, repr=False)
class Unsupported(BackendError):
    """The store lacks a feature, permission, table or version that locks need.

    ``lacks``: ``"tables"`` if a table or a column is missing or does not fit,
    ``"rights"`` if the user has no right on one; else ``""``.
    """

    status_hint: ClassVar[int] = 501
    lacks: Lacks = field(default="", kw_only=True)
