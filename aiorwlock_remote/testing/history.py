"""Histories: JSON-lines records of what happened to locks, for ``check_history``.

Every process writes its own file. A line is written before a call (``ask``,
``releasing``) and after its outcome. If a process is killed, its file misses no call,
and only its last line may be incomplete::

    with History("worker-1.jsonl") as history:
        attempt = history.ask("catalog,7", "W")
        held = await lock.writer.acquire()
        attempt.granted(fence=held.fence, until=now() + round(held.expires_in * 1e9))
        serial = storage.write(held.fence)
        attempt.access(step=1, serial=serial, until=attempt.until)
        attempt.releasing(until=attempt.until)
        await held.release()
        attempt.released(ok=True)

All times are integer nanoseconds of ``now()``, a clock that the processes of one host
share: histories of several hosts cannot be mixed. ``until`` is the local deadline up to
which a holder relies on its grant, or None if the grant has no end.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, final, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# "R": shared with other readers. "W": exclusive.
EventMode = Literal["R", "W"]

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> int:
    """Return monotonic nanoseconds of a clock that all processes of a host share."""
    # CLOCK_BOOTTIME, where the system has it, goes on while the host is suspended, as
    # leases do.
    return (
        time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)
    )


# -------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class _Step:
    process: str
    resource: str
    # Name of one attempt to acquire: 12 hex digits, never its secret ticket.
    holder: str
    at: int


@dataclass(frozen=True, slots=True)
class _Answer(_Step):
    asked_at: int


@final
@dataclass(frozen=True, slots=True)
class Ask(_Step):
    """Event: a process is about to call ``acquire``."""

    mode: EventMode


@final
@dataclass(frozen=True, slots=True)
class Granted(_Answer):
    """Event: ``acquire`` returned a grant, which ends at ``until`` (None: no end)."""

    mode: EventMode
    fence: int
    until: int | None


@final
@dataclass(frozen=True, slots=True)
class Refused(_Answer):
    """Event: ``acquire`` granted nothing: the lock was busy, or the timeout passed."""


@final
@dataclass(frozen=True, slots=True)
class Failed(_Answer):
    """Event: ``acquire`` raised an error that proves that nothing was granted."""


@final
@dataclass(frozen=True, slots=True)
class Unknown(_Answer):
    """Event: ``acquire`` raised an error; the lock may have been granted or not."""


@final
@dataclass(frozen=True, slots=True)
class Access(_Step):
    """Event: a holder accessed the resource that its fence protects.

    ``step``: number of this access within the grant (1, 2, …). ``serial``: number of
    this access among all that the resource accepted, or None if the resource refused
    the fence as stale. ``until``: local deadline of the grant, renewals included.
    """

    mode: EventMode
    fence: int
    step: int
    serial: int | None
    until: int | None


@final
@dataclass(frozen=True, slots=True)
class Releasing(_Step):
    """Event: a process is about to release a grant: its own, or another's by force."""

    # Without this line, a release under way when its process is killed would look like
    # a lock that two processes hold.
    until: int | None


@final
@dataclass(frozen=True, slots=True)
class Released(_Answer):
    """Event: a release has ended.

    ``ok``: True if the store confirmed that the grant was alive until then, False if
    the store did not know the grant, None if the outcome is unknown.
    """

    ok: bool | None


@final
@dataclass(frozen=True, slots=True)
class Lost(_Step):
    """Event: a holder learned that its grant is lost; ``reason``: "expired", …."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class Died:
    """Event: ``process`` is dead; another process awaited its end and wrote this."""

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


def encode_event(event: Event) -> bytes:
    """Return the event as one line of JSON in bytes, newline included."""
    kind = type(event)
    record: dict[str, object] = {"e": kind.__name__.lower()}
    for name in _FIELDS[kind]:
        record[_JSON[name][0]] = getattr(event, name)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decode_event(line: bytes) -> Event:
    """Return the event that one line of JSON contains; unknown keys are ignored.

    Raises:
        ValueError: The line is not an event.
    """
    parsed: object = json.loads(line)
    record = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    kind = _KINDS.get(str(record.get("e")))
    if kind is None:
        raise ValueError("no known event")
    values = {name: record.get(_JSON[name][0], ...) for name in _FIELDS[kind]}
    for name, value in values.items():
        # Not isinstance: in Python, True is an int.
        if type(value) not in _JSON[name][1]:
            raise ValueError(f"{name} cannot be {value!r}")
    if values.get("mode", "R") not in get_args(EventMode):
        raise ValueError(f"mode cannot be {values['mode']!r}")
    return kind(**values)


__all__ = ["Attempt", "History", "now", "read_history"]


def read_history(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Event]:
    """Yield the events of all files in turn; skip an incomplete last line of a file.

    Raises:
        ValueError: Another line is not an event; a history with holes proves nothing.
    """
    for path in paths:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    event = decode_event(line)
                except ValueError as error:
                    # The last line of a process that was killed while it wrote.
                    if not line.endswith(b"\n"):
                        break
                    raise ValueError(f"{path}:{number}: {error}") from error
                yield event


@final
class History:
    """Writer of one process's history file; appends to an existing file.

    A line is in the file when the method that writes it returns. ``process`` names the
    process in the events (default: its process id). Threads may share a ``History``,
    processes may not.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, process: str | None = None
    ) -> None:
        self.process: str = process or str(os.getpid())
        self._path = Path(path)
        self._drop_torn_line()
        # Unbuffered and O_APPEND: one line is one write, whole or not there.
        self._file = self._path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<History {str(self._path)!r} of process {self.process}>"

    def close(self) -> None:
        self._file.close()

    def write(self, event: Event) -> None:
        """Append one event; raise OSError if its line could not be written whole."""
        # A full disk may take half a line. A history with holes proves nothing, so the
        # run must fail instead.
        line = encode_event(event)
        if self._file.write(line) != len(line):
            raise OSError(f"{self._path}: short write")

    def ask(
        self, resource: str, mode: EventMode, *, holder: str | None = None
    ) -> Attempt:
        """Write an ``Ask`` event to the file, right before a call of ``acquire``.

        Return the ``Attempt`` that writes what follows. ``mode``: "R" for a reader, "W"
        for a writer or mutex. ``holder``: name in the events (default: a random one).
        """
        return Attempt(self, resource, mode, holder or secrets.token_hex(6))

    def died(self, process: str) -> None:
        """Write to the history file that another process, ``process``, is dead."""
        self.write(Died(process=process, at=now()))

    def _drop_torn_line(self) -> None:
        # What a killed process left of its last line would be glued to our first one.
        if self._path.is_file():
            text = self._path.read_bytes()
            os.truncate(self._path, text.rfind(b"\n") + 1)


@final
class Attempt:
    """Recorder of one call of ``acquire`` and what follows; made by ``History.ask``.

    Each method writes one event to the history file. ``until`` is the local deadline of
    the grant after its last renewal: nanoseconds of ``now()``, or None (no end).
    Call ``granted`` as soon as the acquire has returned: the grant begins at that call.
    """

    def __init__(
        self, history: History, resource: str, mode: EventMode, holder: str
    ) -> None:
        self.fence: int = 0
        self.until: int | None = None
        self._history = history
        self._who = (history.process, resource, holder)
        self._mode: EventMode = mode
        self._asked_at = self._leaving_at = now()
        history.write(Ask(*self._who, self._asked_at, mode))

    @property
    def holder(self) -> str:
        return self._who[2]

    def granted(self, *, fence: int, until: int | None) -> None:
        """Write to the history file that ``acquire`` returned a grant.

        ``until``: local deadline (ns of ``now()``), or None if the grant has no end.
        """
        at = now()
        self.fence, self.until = fence, until
        self._history.write(
            Granted(*self._who, at, self._asked_at, self._mode, fence, until)
        )

    def refused(self) -> None:
        """Write to the history file that the lock was busy, or not granted in time."""
        self._history.write(Refused(*self._who, now(), self._asked_at))

    def failed(self) -> None:
        """Write to the history file that ``acquire`` failed and granted nothing."""
        self._history.write(Failed(*self._who, now(), self._asked_at))

    def unknown(self) -> None:
        """Write to the history file that ``acquire`` failed, but may have granted."""
        self._history.write(Unknown(*self._who, now(), self._asked_at))

    def access(self, *, step: int, serial: int | None, until: int | None) -> None:
        """Write an access to the protected resource to the history file.

        ``step``: number of the access within this grant, from 1. ``serial``: its number
        among all that the resource accepted, or None if the resource refused it.
        ``until``: local deadline of the grant (ns of ``now()``); None: it has no end.
        """
        self.until = until
        self._history.write(
            Access(*self._who, now(), self._mode, self.fence, step, serial, until)
        )

    def releasing(self, *, until: int | None) -> None:
        """Write to the history file that the grant is about to be released.

        ``until``: local deadline (ns of ``now()``), or None if the grant has no end.
        """
        self.until, self._leaving_at = until, now()
        self._history.write(Releasing(*self._who, self._leaving_at, until))

    def released(self, *, ok: bool | None) -> None:
        """Write to the history file that the release has ended.

        ``ok``: True if the store confirmed that the grant was alive until then, False
        if the store did not know the grant, None if the outcome is unknown.
        """
        self._history.write(Released(*self._who, now(), self._leaving_at, ok))

    def lost(self, reason: str) -> None:
        """Write to the history file that the grant was lost (reason "expired", …)."""
        self._history.write(Lost(*self._who, now(), reason))
