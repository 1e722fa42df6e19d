"""``Options``: the options of a lock, checked; users pass them as ``OptionArgs``.

Options of ``acquire`` replace those of the lock, which replace those of ``connect``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal

from aiorwlock_remote.core.permits import MAX_LIMIT
from aiorwlock_remote.core.text import nearest, quoted
from aiorwlock_remote.core.ticket import Policy
from aiorwlock_remote.core.timing import (
    DEFAULT_LEASE,
    MIN_LEASE,
    check_seconds,
)
from aiorwlock_remote.core.url import CONNECT_ONLY_OPTIONS
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.runtime.lease import LeaseTerms, default_margin

PolicyName = Literal["fair", "writer", "reader"]
"""Who goes first when readers and writers both wait."""
# ``OnLost`` (locks/lock.py) without its ``Held``, which needs the options itself.
OnLostCallback = Literal["raise", "flag"] | Callable[[Any], object]
_MAX_WAITERS = 2**31

# An unknown option is most often a known one in the wrong place, or by the name that
# another library has for it: the error says where it belongs (test_option_hints.py).
_ELSEWHERE = {
    "reason": "acquire",
    **dict.fromkeys(sorted(CONNECT_ONLY_OPTIONS), "connect"),
}
"""Options that only one call takes, mapped to that call."""

_HERE = {
    "blocking": "try_acquire()",
    "blocking_timeout": "acquire(timeout=…)",
    "expire": "lease=…",
    "ttl": "lease=…",
    "wait": "acquire(timeout=…)",
}
"""Option names of other libraries, mapped to what to write instead."""


@value
class Options:
    """Value object: all options of a lock, checked; ``OptionArgs`` explains them.

    Two attributes are computed from the others:

    Attributes:
        terms: the time limits of a grant among the options, for the lease keeper.
        admission: ``policy`` if ``fair``, else ``BARGE``, which ignores the queue.
    """

    lease: float | None = DEFAULT_LEASE
    policy: PolicyName = "fair"
    fair: bool = True
    on_lost: OnLostCallback = "raise"
    max_stall: float | None = None
    max_hold: float | None = None
    margin: float | None = None
    slow_wait: float | None = None
    max_waiters: int | None = None
    lock_delay: float = 0.0
    terms: LeaseTerms = field(init=False)
    admission: Policy = field(init=False)

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            check(getattr(self, name))
        self._check_margin_and_compute()

    def but(self, changes: Mapping[str, object]) -> Options:
        """Return a copy with ``changes``; a wrong one raises ``ConfigurationError``."""
        for name, given in changes.items():
            check = _CHECKS.get(name)
            if check is None:
                raise ConfigurationError(
                    what=f"unknown option {quoted(name)}",
                    hint=_hint(name, set(_CHECKS)),
                )
            check(given)
        # ``replace`` does not run ``__post_init__``: only what changed is checked, and
        # the margin, which depends on the lease.
        changed: Options = replace(self, **dict[str, Any](changes))
        changed._check_margin_and_compute()
        return changed

    def _check_margin_and_compute(self) -> None:
        lease, margin = self.lease, self.margin
        if lease is not None:
            margin = default_margin(lease) if margin is None else margin
            if margin >= lease / 2:
                raise ConfigurationError(
                    what=f"margin={margin:g} leaves too little of a lease of {lease:g}"
                )
        # Once, and not for each lock that is made with these options.
        terms = LeaseTerms(lease, self.margin, self.max_stall, self.max_hold)
        object.__setattr__(self, "terms", terms)
        admission = Policy(self.policy) if self.fair else Policy.BARGE
        object.__setattr__(self, "admission", admission)


def rwlock_options(
    options: Options, changes: Mapping[str, object], kind: str = "rwlock"
) -> Options:
    """Return a copy with ``changes``, for a readers-writer lock or a semaphore. Raise
    ``ConfigurationError`` if a change is not valid, or is an option of other locks.
    """
    if kind == "semaphore":
        for name in ("fair", "policy"):
            if name in changes:
                raise ConfigurationError(
                    what=f"{name} is no option of a semaphore",
                    hint="permits are given out in the order of arrival",
                )
    elif "fair" in changes:
        raise ConfigurationError(
            what="fair is an option of a mutex",
            hint="policy='reader' or 'writer' lets one side pass the other",
        )
    return options.but(changes)


def _check_fair(fair: object) -> None:
    if not isinstance(fair, bool):
        raise ConfigurationError(what=f"fair={quoted(fair)} is not True or False")


def _check_policy(policy: object) -> None:
    if policy not in ("fair", "writer", "reader"):
        raise ConfigurationError(
            what=f"unknown policy {quoted(policy)}", hint="fair, writer or reader"
        )


def _check_on_lost(on_lost: object) -> None:
    if on_lost not in ("raise", "flag") and not callable(on_lost):
        raise ConfigurationError(
            what=f"on_lost={quoted(on_lost)}", hint="'raise', 'flag' or a callable"
        )
    # Else a coroutine would be made at each loss, and never run.
    if iscoroutinefunction(on_lost):
        raise ConfigurationError(
            what=f"on_lost={quoted(on_lost)} would not be awaited",
            hint="a plain function: it is called in the loop, and may start tasks",
        )


def _check_max_waiters(most: object) -> None:
    if most is not None:
        check_count("max_waiters", most, least=1)


def check_limit(limit: object) -> int:
    """Return the limit of a semaphore, or raise ``ConfigurationError``."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise ConfigurationError(
            what=f"limit={quoted(limit)} is not a whole number",
            hint="how many tasks may hold the semaphore at a time",
        )
    if not 1 <= limit <= MAX_LIMIT:
        raise ConfigurationError(
            what=f"limit={quoted(limit)} is out of range", hint=f"from 1 to {MAX_LIMIT}"
        )
    return limit


def _hint(name: str, known: set[str]) -> str:
    if name == "timeout":
        return "acquire(timeout=…) is how long to wait, lease=… how long a grant lives"
    if name in _ELSEWHERE:
        return f"it is an option of {_ELSEWHERE[name]}(…)"
    if name in _HERE:
        return f"here it is {_HERE[name]}"
    return nearest(name, known, *_ELSEWHERE)


def check_count(name: str, value: object, *, least: int) -> None:
    """Raise ``ConfigurationError`` unless ``least <= value < 2**31``, an integer."""
    whole = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if not least <= whole < _MAX_WAITERS:
        raise ConfigurationError(what=f"{name}={quoted(value)} is not a count")


_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "lease": partial(check_seconds, "lease", least=MIN_LEASE),
    **{
        name: partial(check_seconds, name)
        for name in ("max_stall", "max_hold", "margin", "slow_wait")
    },
    "lock_delay": partial(check_seconds, "lock_delay", endless=False),
    "fair": _check_fair,
    "policy": _check_policy,
    "on_lost": _check_on_lost,
    "max_waiters": _check_max_waiters,
}
"""A function for each option that raises ``ConfigurationError`` for a bad value."""
