"""For the web integrations: lock names from paths, HTTP responses to errors."""

from __future__ import annotations

import logging
import math
import re
import string
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import get_args
from uuid import UUID

from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.text import check_reason, quoted
from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError, LockError, LockTimeout
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.http")

ParameterType = type[str] | type[int] | type[UUID]

PROBLEM = "application/problem+json"

DEFAULT_TIMEOUT = 5.0
"""Seconds that a request waits for its lock by default."""

PARAMETER_TYPES: dict[str, ParameterType] = {
    "": str,
    "str": str,
    "int": int,
    "uuid": UUID,
}
"""The types of path parameters, by their names in templates: ``{id:int}``."""


@dataclass(frozen=True, slots=True)
class PathParameter:
    """A parameter in a lock name, written ``{name}`` or ``{name:int}``.

    ``kind``: the type to which its text in the path is converted; ``bare``: True if it
    is written without a type.
    """

    name: str
    kind: ParameterType
    bare: bool


class LockNameTemplate:
    """The name of a lock with parameters of a path in it: ``"invoice:{id:int}"``.

    The resource type is before the first colon. ``{id:int}`` and ``{id:uuid}`` give all
    spellings of a number (7, 007) or a UUID one lock; ``{id:str}`` and ``{id}`` take
    the text as it is in the path. A value that contains the text between two parameters
    is percent-encoded, so that no two paths share a lock.

    Raises:
        ConfigurationError: the text has no type or no id, or a parameter in braces is
            not valid.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(
                what=f"a template must be str, not {type(text).__name__}"
            )
        kind, _, rest = text.partition(":")
        if not kind or not rest or set(kind) & set("{}"):
            raise ConfigurationError(
                what=f"{quoted(text)} does not name a lock",
                hint="write it as 'invoice:{id}'",
            )
        self.text = text
        self.resource_type = kind
        self._parts, self.parameters = _parts(rest, text)
        between = "".join(part for part in self._parts if type(part) is str)
        # With one parameter every text is unambiguous, so it stays as it is.
        several = len(self.parameters) > 1
        self._reserved = re.compile(f"[%{re.escape(between)}]" if several else r"(?!)")

    def resource_id(self, values: Mapping[str, object]) -> ResourceId:
        """Return the resource id, given the values of the path's parameters by name.

        Raise ``ValueError`` if a text cannot be converted to its parameter's type, and
        ``ConfigurationError`` if a value is empty or of another type.
        """
        read = {p.name: _read(p, values[p.name]) for p in self.parameters}
        if len(self._parts) == 1 and self.parameters:
            (made,) = read.values()
        else:
            made = "".join(
                part if isinstance(part, str) else self._escaped(str(read[part.name]))
                for part in self._parts
            )
        # Here, so that an id that no store can hold is an error of this request.
        resource(self.resource_type, made)
        return made

    def _escaped(self, text: str) -> str:
        if not text:
            raise ConfigurationError(what=f"{quoted(self.text)}: a parameter is empty")
        return self._reserved.sub(_percent_encoded, text)


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


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
            what=f"{quoted(text)} is not a valid template",
            hint="write {name}, {name:int} or {name:uuid}, with text between them",
        ) from None
    parameters = tuple(part for part in parts if isinstance(part, PathParameter))
    if len({parameter.name for parameter in parameters}) != len(parameters):
        raise ConfigurationError(what=f"{quoted(text)} has a parameter twice")
    return parts, parameters


_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")


def _read(parameter: PathParameter, value: object) -> ResourceId:
    # True is an int, but its text in a path would be neither "1" nor "true".
    if isinstance(value, parameter.kind) and not isinstance(value, bool):
        return value
    if parameter.kind is str and isinstance(value, int | UUID):
        # Converted by the framework already, so all spellings are one value.
        return value
    if not isinstance(value, str):
        raise ConfigurationError(
            what=f"{{{parameter.name}}} is of type {type(value).__name__}, not text"
        )
    # int() would also take "1_000", " 7" and thousands of digits (test_templates.py).
    if parameter.kind is int and not _INTEGER.fullmatch(value):
        raise ValueError(parameter.name)
    read: ResourceId = parameter.kind(value)
    return read


class PathNamesNoLock(Exception):
    """A text in the request's path cannot be converted to its type: answer 404."""


class HoldSpec:
    """Checked arguments of one ``hold``; ``ConfigurationError`` if one is not valid."""

    def __init__(
        self,
        template: str,
        mode: LockModeName,
        timeout: float | None,
        reason: str,
        options: OptionArgs,
    ) -> None:
        self.template = LockNameTemplate(template)
        if mode not in get_args(LockModeName):
            raise ConfigurationError(
                what=f"mode {quoted(mode)}", hint="'read' or 'write'"
            )
        check_seconds("timeout", timeout)
        # Against the defaults: those of the `Locks` are known with the first request.
        Options().but(options)
        self.mode: LockModeName = mode
        self._timeout = timeout
        self._reason = check_reason(reason)
        self._options = options

    def acquisition(self, locks: Locks, values: Mapping[str, object]) -> Acquisition:
        """Return an attempt to get the lock; ``values``: the path's parameters by name.

        Raises:
            PathNamesNoLock: a parameter cannot be converted to its type.
            ConfigurationError: the options contradict those of ``locks``.
        """
        try:
            made = self.template.resource_id(values)
        except ValueError as exc:
            raise PathNamesNoLock from exc
        pair = locks.rwlock(self.template.resource_type, made, **self._options)
        lock = pair.writer if self.mode == "write" else pair.reader
        return lock.acquire(self._timeout, reason=self._reason)

    def check(self, path: str, kinds: Mapping[str, object]) -> None:
        """Raise ``ConfigurationError`` unless the template fits the path of a route.

        ``kinds`` maps each parameter of the path to the type that the handler declares,
        or to None if the path itself converts the parameter.
        """
        template = self.template
        for parameter in template.parameters:
            if parameter.name not in kinds:
                raise ConfigurationError(
                    what=f"{template.text!r} needs {{{parameter.name}}}, "
                    f"{quoted(path)} does not have it"
                )
            kind = kinds[parameter.name]
            if parameter.bare and kind not in (str, None):
                raise ConfigurationError(
                    what=f"{template.text!r} takes {{{parameter.name}}} as text, which "
                    f"{quoted(path)} reads as {getattr(kind, '__name__', kind)}",
                    hint=f"write {{{parameter.name}:int}}, uuid or str: otherwise 7 "
                    "and 007 may be two locks",
                )

    def __repr__(self) -> str:
        return f"<hold {self.template.text!r} {self.mode}>"


def check_connecting(given: object) -> None:
    """Raise ``ConfigurationError`` unless ``given`` is a result of ``connect(…)``."""
    if not isinstance(given, AbstractAsyncContextManager):
        raise ConfigurationError(
            what=f"no locks can be opened from {type(given).__name__}",
            hint="add_locks(app, connect(…))",
        )


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """HTTP response to an error; ``body`` is of type ``application/problem+json``."""

    status: int
    headers: dict[str, str]
    body: dict[str, object]


def answer(error: LockError) -> ErrorResponse | None:
    """Return the HTTP response to a lock error, or None if the error shows a bug.

    A bug is left to the server, which logs it and answers 500. The text of an error
    names hosts and processes, so it is logged and not sent
    (test_not_in_time_is_423_and_says_when_but_not_who).
    """
    status = error.status_hint
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    # The store did not answer in time: the resource may be free, so this is no 423
    # (test_answers).
    if isinstance(error, LockTimeout) and error.unanswered:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        log_event(log, "unavailable", error=str(error))
    headers: dict[str, str] = {}
    if status == HTTPStatus.LOCKED:
        log_event(log, "refused", logging.DEBUG, error=str(error))
        seconds = error.retry_after if isinstance(error, LockTimeout) else None
        # Whole seconds, and never 0, which would invite a client to poll.
        headers["Retry-After"] = str(max(1, math.ceil(seconds or 1)))
    # RFC 9457: a problem about which its status says everything.
    title = HTTPStatus(status).phrase
    body: dict[str, object] = {"type": "about:blank", "title": title, "status": status}
    return ErrorResponse(status, headers, body)
