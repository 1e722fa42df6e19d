"""The events of a history, as values and as JSON lines.

All times are integer nanoseconds of `now()`, which the processes of one host share:
histories of several hosts cannot be mixed. `until` is the local deadline up to which a
holder counts on its grant, None = for ever.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, cast, final, get_args

Mode = Literal["R", "W"]
"""Shared with other readers, or alone."""

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> int:
    """Nanoseconds on a clock that is the same in every process of this host.

    It goes on while the host is suspended, as leases do, where the system has such a
    clock (CLOCK_BOOTTIME).
    """
    return (
        time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)
    )


# -------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class _Step:
    process: str
    resource: str
    holder: str
    """Names one attempt to acquire: 12 hex digits, never its secret ticket."""
    at: int


@dataclass(frozen=True, slots=True)
class _Answer(_Step):
    asked_at: int


@final
@dataclass(frozen=True, slots=True)
class Ask(_Step):
    """An acquire is about to be called."""

    mode: Mode


@final
@dataclass(frozen=True, slots=True)
class Granted(_Answer):
    """The acquire succeeded."""

    mode: Mode
    fence: int
    until: int | None


@final
@dataclass(frozen=True, slots=True)
class Refused(_Answer):
    """The lock was not granted: busy, or not in time."""


@final
@dataclass(frozen=True, slots=True)
class Failed(_Answer):
    """An error which proves that nothing was granted: connection refused, say."""


@final
@dataclass(frozen=True, slots=True)
class Unknown(_Answer):
    """An error that leaves open whether the lock was granted."""


@final
@dataclass(frozen=True, slots=True)
class Access(_Step):
    """The `step`-th (1, 2, …) access of a grant to the resource its fence protects.

    `serial` is its place among all accesses the resource accepted, None = the fence
    was refused as stale. `until` is the one known by now, renewals included.
    """

    mode: Mode
    fence: int
    step: int
    serial: int | None
    until: int | None


@final
@dataclass(frozen=True, slots=True)
class Releasing(_Step):
    """A release is about to be called, by the holder or by whoever forces it.

    Without this line a release under way when its process was killed would look like
    a lock that lets two in.
    """

    until: int | None


@final
@dataclass(frozen=True, slots=True)
class Released(_Answer):
    """What came of it.

    `ok`: True = the store confirmed that the grant was alive until then, False = the
    store knew no such grant, None = it is not known.
    """

    ok: bool | None


@final
@dataclass(frozen=True, slots=True)
class Lost(_Step):
    """The holder learned that it no longer holds, for `reason` (as in LockLost)."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class Died:
    """`process` is dead, and was killed; written by who did it and waited for it."""

    process: str
    at: int


Event = (
    Ask
    | Granted
    | Refused
    | Failed
    | Unknown
    | Access
    | Releasing
    | Released
    | Lost
    | Died
)

# --------------------------------------------------------------------- lines

_KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Ask, Granted, Refused, Failed, Unknown),
        *(Access, Releasing, Released, Lost, Died),
    )
}
_JSON: dict[str, tuple[str, tuple[type, ...]]] = {
    # field: (key in JSON, types allowed)
    "process": ("p", (str,)),
    "resource": ("r", (str,)),
    "holder": ("h", (str,)),
    "at": ("t", (int,)),
    "asked_at": ("a", (int,)),
    "mode": ("m", (str,)),
    "fence": ("f", (int,)),
    "until": ("u", (int, NoneType)),
    "step": ("n", (int,)),
    "serial": ("s", (int, NoneType)),
    "ok": ("ok", (bool, NoneType)),
    "reason": ("why", (str,)),
}
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind in _KINDS.values()}


def encoded(event: Event) -> bytes:
    """The event as one line of JSON, newline included."""
    kind = type(event)
    record: dict[str, object] = {"e": kind.__name__.lower()}
    for name in _FIELDS[kind]:
        record[_JSON[name][0]] = getattr(event, name)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decoded(line: bytes) -> Event:
    """The event on a line; ValueError if there is none. Unknown keys are ignored."""
    parsed: object = json.loads(line)
    record = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    kind = _KINDS.get(str(record.get("e")))
    if kind is None:
        raise ValueError("no known event")
    values = {name: record.get(_JSON[name][0], ...) for name in _FIELDS[kind]}
    for name, value in values.items():
        # Not isinstance: to Python true is an int.
        if type(value) not in _JSON[name][1]:
            raise ValueError(f"{name} cannot be {value!r}")
    if values.get("mode", "R") not in get_args(Mode):
        raise ValueError(f"mode cannot be {values['mode']!r}")
    return kind(**values)
