"""What the web integrations share: how a lock is named, and how errors are answered."""

from __future__ import annotations

import logging
import math
import re
import string
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, get_args
from uuid import UUID

from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.text import check_reason, quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError, LockError, LockTimeout
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.http")

Mode = Literal["read", "write"]
ParameterType = type[str] | type[int] | type[UUID]

PROBLEM = "application/problem+json"

DEFAULT_TIMEOUT = 5.0
"""Seconds; nobody waits for a page for ever."""

PARAMETER_TYPES: dict[str, ParameterType] = {
    "": str,
    "str": str,
    "int": int,
    "uuid": UUID,
}
"""What may follow the colon in ``{id:int}``."""


@dataclass(frozen=True, slots=True)
class PathParameter:
    """``{name}`` or ``{name:int}``: a part of the path, and what it is read as."""

    name: str
    kind: ParameterType
    bare: bool


class LockNameTemplate:
    """``"invoice:{id:int}"``: the name of a lock, with parts of a path in it.

    Before the first colon stands the resource type. ``{id:int}`` and ``{id:uuid}``
    make one lock of all spellings of a number (7, 007) or a UUID; ``{id:str}``, or
    ``{id}``, takes the text as it stands in the path. Where there are several parts,
    a part that contains the text between them is percent-encoded: no two paths share
    a lock.
    """

    def __init__(self, text: str) -> None:
        """Refuse what names no lock.

        Raises:
            ConfigurationError: no type or no id, a braced part that cannot be read.
        """
        if not isinstance(text, str):
            raise ConfigurationError(
                what=f"a template must be str, not {type(text).__name__}"
            )
        kind, _, rest = text.partition(":")
        if not kind or not rest or set(kind) & set("{}"):
            raise ConfigurationError(
                what=f"{quoted(text)} does not name a lock", hint="as in 'invoice:{id}'"
            )
        self.text = text
        self.resource_type = kind
        self._parts, self.places = _parts(rest, text)
        self._between = set("".join(part for part in self._parts if type(part) is str))

    def resource_id(self, values: Mapping[str, object]) -> ResourceId:
        """The id that these values make.

        Raises:
            KeyError: one is missing.
            ValueError: a text that its place cannot be read from.
            ConfigurationError: a value of an unfit type, an empty one.
        """
        read = {p.name: _read(p, values[p.name]) for p in self.places}
        if len(self._parts) == 1 and self.places:
            (only,) = read.values()
            made = only
        else:
            several = len(self.places) > 1
            made = "".join(
                part
                if isinstance(part, str)
                else self._escaped(str(read[part.name]), several=several)
                for part in self._parts
            )
        resource(self.resource_type, made)
        return made

    def _escaped(self, text: str, *, several: bool) -> str:
        if not text:
            raise ConfigurationError(what=f"{quoted(self.text)}: an empty part")
        if not several:
            return text
        return "".join(
            "".join(f"%{byte:02X}" for byte in char.encode())
            if char == "%" or char in self._between
            else char
            for char in text
        )


def _parts(
    rest: str, text: str
) -> tuple[list[str | PathParameter], tuple[PathParameter, ...]]:
    parts: list[str | PathParameter] = []
    try:
        for literal, name, kind, conversion in string.Formatter().parse(rest):
            if literal:
                parts.append(literal)
            if name is None:
                continue
            if not name.isidentifier() or conversion or kind not in PARAMETER_TYPES:
                raise ValueError  # noqa: TRY301 - one message for all of them
            if parts and isinstance(parts[-1], PathParameter):
                raise ValueError  # noqa: TRY301 - where does one end?
            parts.append(PathParameter(name, PARAMETER_TYPES[kind], bare=not kind))
    except ValueError:
        raise ConfigurationError(
            what=f"{quoted(text)} cannot be read",
            hint="parts are {name}, {name:int} or {name:uuid}, with text between them",
        ) from None
    places = tuple(part for part in parts if isinstance(part, PathParameter))
    if len({place.name for place in places}) != len(places):
        raise ConfigurationError(what=f"{quoted(text)} has a part twice")
    return parts, places


_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")


def _read(place: PathParameter, value: object) -> ResourceId:
    if isinstance(value, place.kind) and not isinstance(value, bool):
        return value
    if place.kind is str and isinstance(value, int | UUID):
        return value  # the framework has read it, so all its spellings are one
    if not isinstance(value, str):
        raise ConfigurationError(
            what=f"{{{place.name}}} is of type {type(value).__name__}"
        )
    if place.kind is int and not _INTEGER.fullmatch(value):
        raise ValueError(place.name)
    read: ResourceId = place.kind(value)
    return read


class PathNamesNoLock(Exception):
    """A path that names no lock, and so no page."""


class HoldSpec:
    """What a handler holds while it runs: which lock, how, and how long it waits."""

    def __init__(
        self,
        template: str,
        mode: Mode,
        timeout: float | None,
        reason: str,
        options: OptionArgs,
    ) -> None:
        """Refuse what cannot be used, long before the first request.

        Raises:
            ConfigurationError: a template, a mode, a number, a reason or an option.
        """
        self.template = LockNameTemplate(template)
        if mode not in get_args(Mode):
            raise ConfigurationError(
                what=f"mode {quoted(mode)}", hint="'read' or 'write'"
            )
        check_seconds("timeout", timeout)
        Options().but(options)
        self.mode: Mode = mode
        self._timeout = timeout
        self._reason = check_reason(reason)
        self._options = options

    def acquisition(self, locks: Locks, values: Mapping[str, object]) -> Acquisition:
        """The lock that these parts of a path name, about to be acquired.

        Raises:
            NoPage: the path names none.
            ConfigurationError: the options do not go with those of ``locks``.
        """
        try:
            made = self.template.resource_id(values)
        except ValueError as exc:
            raise PathNamesNoLock from exc
        pair = locks.rwlock(self.template.resource_type, made, **self._options)
        lock = pair.writer if self.mode == "write" else pair.reader
        return lock.acquire(self._timeout, reason=self._reason)

    def check(self, path: str, kinds: Mapping[str, object]) -> None:
        """Make sure that a route fits. ``kinds``: its path's parts → what reads them.

        Raises:
            ConfigurationError: a part is missing, or read as something else elsewhere.
        """
        template = self.template
        for place in template.places:
            if place.name not in kinds:
                raise ConfigurationError(
                    what=f"{template.text!r} needs {{{place.name}}}, "
                    f"{quoted(path)} has none"
                )
            kind = kinds[place.name]
            if place.bare and kind not in (str, None):
                raise ConfigurationError(
                    what=f"{template.text!r} takes {{{place.name}}} as text, which "
                    f"{quoted(path)} reads as {getattr(kind, '__name__', kind)}",
                    hint=f"say {{{place.name}:int}}, uuid or str: else 7 and 007 may "
                    "be two locks",
                )

    def __repr__(self) -> str:
        return f"<hold {self.template.text!r} {self.mode}>"


def check_connecting(given: object) -> None:
    """Refuse what ``add_locks`` could not open when the application starts.

    Raises:
        ConfigurationError: a URL, or ``connect`` itself.
    """
    if not isinstance(given, AbstractAsyncContextManager):
        raise ConfigurationError(
            what=f"no locks can be opened from {type(given).__name__}",
            hint="add_locks(app, connect(…))",
        )


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error as HTTP has it."""

    status: int
    headers: dict[str, str]
    body: dict[str, object]


def answer(error: LockError) -> ErrorResponse | None:
    """What a client is told of it; None: a bug of ours, which is the server's to log.

    The text of an error names hosts and processes: it goes to the log, not to clients.
    """
    status = error.status_hint
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    if isinstance(error, LockTimeout) and error.unanswered:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        log_event(log, "unavailable", error=str(error))
    headers: dict[str, str] = {}
    if status == HTTPStatus.LOCKED:
        seconds = error.retry_after if isinstance(error, LockTimeout) else None
        headers["Retry-After"] = str(max(1, math.ceil(seconds or 1)))
    return problem(status, headers)


def problem(status: int, headers: dict[str, str] | None = None) -> ErrorResponse:
    """A problem that its status says all about (RFC 9457)."""
    title = HTTPStatus(status).phrase
    body: dict[str, object] = {"type": "about:blank", "title": title, "status": status}
    return ErrorResponse(status, headers or {}, body)
