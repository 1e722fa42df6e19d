"""Options, resolved from ``connect`` over the lock to the single acquire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from inspect import iscoroutinefunction
from typing import Any, Literal

from aiorwlock_remote.core.lease import (
    DEFAULT_LEASE,
    MIN_LEASE,
    check_seconds,
    default_margin,
)
from aiorwlock_remote.core.shown import nearest, quoted
from aiorwlock_remote.core.ticket import Policy
from aiorwlock_remote.core.url import OF_CONNECT
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.runtime.lease import Terms

PolicyName = Literal["fair", "writer", "reader"]
OnLoss = Literal["raise", "flag"] | Callable[[Any], object]
"""As ``OnLost``; only ``Held`` itself knows what it is that is given."""
_MOST = 2**31

_ELSEWHERE = {"reason": "acquire", **dict.fromkeys(sorted(OF_CONNECT), "connect")}
"""Options of one call alone."""

_HERE = {
    "blocking": "try_acquire()",
    "blocking_timeout": "acquire(timeout=…)",
    "expire": "lease=…",
    "ttl": "lease=…",
    "wait": "acquire(timeout=…)",
}
"""What other libraries call it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Resolved options; ``OptionArgs`` says what they mean."""

    lease: float | None = DEFAULT_LEASE
    policy: PolicyName = "fair"
    fair: bool = True
    on_lost: OnLoss = "raise"
    max_stall: float | None = None
    max_hold: float | None = None
    margin: float | None = None
    slow_wait: float | None = None
    max_waiters: int | None = None
    lock_delay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range, before anything is sent anywhere."""
        self._check()

    def but(self, changes: Mapping[str, object]) -> Options:
        """These options with some changed.

        Raises:
            ConfigurationError: an unknown option, or a value out of range.
        """
        if not changes:
            return self
        given: dict[str, Any] = dict(changes)
        known = {field.name for field in fields(self)}
        for name in given:
            if name not in known:
                raise ConfigurationError(
                    what=f"unknown option {quoted(name)}", hint=_hint(name, known)
                )
        return replace(self, **given)

    def mutex_policy(self) -> Policy:
        """A mutex is the exclusive mode; unfair, it passes the queue."""
        return Policy(self.policy) if self.fair else Policy.BARGE

    @property
    def terms(self) -> Terms:
        """What the keeper has to know."""
        return Terms(self.lease, self.margin, self.max_stall, self.max_hold)

    def _check(self) -> None:
        check_seconds("lease", self.lease, least=MIN_LEASE)
        for name in ("max_stall", "max_hold", "margin", "slow_wait"):
            check_seconds(name, getattr(self, name))
        check_seconds("lock_delay", self.lock_delay)
        delay: object = self.lock_delay
        if delay is None:
            raise ConfigurationError(what="lock_delay is a number of seconds")
        fair: object = self.fair
        if not isinstance(fair, bool):
            raise ConfigurationError(what=f"fair={quoted(fair)} is not True or False")
        self._check_margin()
        if self.policy not in ("fair", "writer", "reader"):
            raise ConfigurationError(
                what=f"unknown policy {quoted(self.policy)}",
                hint="fair, writer or reader",
            )
        if self.on_lost not in ("raise", "flag") and not callable(self.on_lost):
            raise ConfigurationError(
                what=f"on_lost={quoted(self.on_lost)}",
                hint="'raise', 'flag' or a callable",
            )
        if iscoroutinefunction(self.on_lost):
            raise ConfigurationError(
                what=f"on_lost={quoted(self.on_lost)} would not be awaited",
                hint="a plain function: it is called in the loop, and may start tasks",
            )
        if self.max_waiters is not None:
            check_count("max_waiters", self.max_waiters, least=1)

    def _check_margin(self) -> None:
        if self.lease is None:
            return
        margin = default_margin(self.lease) if self.margin is None else self.margin
        if margin >= self.lease / 2:
            raise ConfigurationError(
                what=f"margin={margin:g} leaves too little of a lease of {self.lease:g}"
            )


def _hint(name: str, known: set[str]) -> str:
    if name == "timeout":
        return "acquire(timeout=…) is how long to wait, lease=… how long a grant lives"
    if name in _ELSEWHERE:
        return f"it is an option of {_ELSEWHERE[name]}(…)"
    if name in _HERE:
        return f"here it is {_HERE[name]}"
    return nearest(name, known, *_ELSEWHERE)


def check_count(name: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number from ``least``, or beyond all use.

    Raises:
        ConfigurationError: naming it.
    """
    whole = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if not least <= whole < _MOST:
        raise ConfigurationError(what=f"{name}={quoted(value)} is not a count")
