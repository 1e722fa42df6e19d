"""For the web integrations: lock names from paths, HTTP responses to errors."""

from __future__ import annotations

import json
import logging
import math
import re
import string
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from statistics import median
from typing import Any, cast, get_args
from uuid import UUID

from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.text import check_reason, quoted
from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.core.timing import DEFAULT_LEASE, check_seconds
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    ConfigurationError,
    LockBusy,
    LockError,
    LockTimeout,
    TooManyWaiters,
)
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.client import Locks, default_lease
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.http")

ParameterType = type[str] | type[int] | type[UUID]

PROBLEM = "application/problem+json"

CLIENT_CLOSED_REQUEST = 499
"""The status in the server's log for a client that left; no client receives it."""

DEFAULT_TIMEOUT = 5.0
"""Seconds that a request waits for its lock by default."""

MAX_TEXT = 200
"""Characters that a text from a query or a body may have to be part of a name."""

MAX_INTEGER = 10**100
"""Integers in a JSON body must be nearer to 0 to be part of a name."""

KEPT = 31
"""How many holds of a resource type the median is taken of."""

OVERDUE = 0.5
"""Fraction of its lease below which a holder has missed a renewal."""

OUTAGE_RETRY = 5.0
"""Seconds after which a client ought to ask again while the store is down."""

MAX_RETRY = 3600
"""Greatest ``Retry-After``, in seconds: leases may be longer."""

PARAMETER_TYPES: dict[str, ParameterType] = {
    "": str,
    "str": str,
    "int": int,
    "uuid": UUID,
}
"""The types of path parameters, by their names in templates: ``{id:int}``."""


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """A parameter in a lock name, written ``{name}``, ``{name:int}`` or
    ``{query.name:int}``.

    ``kind``: the type to which its text is converted; ``bare``: True if it is written
    without a type; ``source``: the part of the request that has its text: ``"path"``,
    ``"query"`` or ``"body"``; ``key``: its name there.
    """

    name: str
    kind: ParameterType
    bare: bool

    @property
    def source(self) -> str:
        return self.name.partition(".")[0] if "." in self.name else "path"

    @property
    def key(self) -> str:
        return self.name.rpartition(".")[2]


class LockNameTemplate:
    """The name of a lock with parameters of a request in it: ``"invoice:{id:int}"``.

    The resource type is before the first colon. ``{id:int}`` and ``{id:uuid}`` give all
    spellings of a number (7, 007) or a UUID one lock; ``{id:str}`` and ``{id}`` take
    the text as it is in the path. A value that contains the text between two parameters
    is percent-encoded, so that no two paths share a lock. ``{query.id:int}`` is a
    parameter of the query, and ``{body.id:int}`` a member of a JSON body; texts there
    are printable and at most ``MAX_TEXT`` characters long.

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
) -> tuple[list[str | TemplateParameter], tuple[TemplateParameter, ...]]:
    parts: list[str | TemplateParameter] = []
    try:
        for literal, name, kind, conversion in string.Formatter().parse(rest):
            if literal:
                parts.append(literal)
            if name is None:
                continue
            if conversion or kind not in PARAMETER_TYPES or not _is_name(name, kind):
                raise ValueError  # noqa: TRY301 - one message for all of them
            if parts and isinstance(parts[-1], TemplateParameter):
                raise ValueError  # noqa: TRY301 - where does one end?
            parts.append(TemplateParameter(name, PARAMETER_TYPES[kind], bare=not kind))
    except ValueError:
        raise ConfigurationError(
            what=f"{quoted(text)} is not a valid template",
            hint="write {name}, {name:int}, {query.name:int} or {body.name:uuid}, with "
            "text between them",
        ) from None
    parameters = tuple(part for part in parts if isinstance(part, TemplateParameter))
    if len({parameter.name for parameter in parameters}) != len(parameters):
        raise ConfigurationError(what=f"{quoted(text)} has a parameter twice")
    return parts, parameters


def _is_name(name: str, kind: str | None) -> bool:
    source, dot, key = name.rpartition(".")
    if not dot:
        return name.isidentifier()
    # A client chooses the spelling of a query or a body, so it is never left open
    # whether 007 equals 7.
    return source in ("query", "body") and key.isidentifier() and bool(kind)


_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")


def _read(parameter: TemplateParameter, value: object) -> ResourceId:
    # Names are shown in logs and tables, and stored for each request that waits.
    if parameter.source != "path" and not _is_short(value):
        raise ValueError(parameter.name)
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


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= MAX_TEXT and value.isprintable()
    return isinstance(value, int) and abs(value) < MAX_INTEGER


class NamesNoLock(Exception):
    """A text in the request cannot be converted to its type, or is missing.

    ``status``: of the answer: 404 if all parameters are in the path, else 422.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


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
            NamesNoLock: a parameter cannot be converted to its type.
            ConfigurationError: the options contradict those of ``locks``.
        """
        try:
            made = self.template.resource_id(values)
        except ValueError as exc:
            raise self.names_no_lock() from exc
        pair = locks.rwlock(self.template.resource_type, made, **self._options)
        lock = pair.writer if self.mode == "write" else pair.reader
        return lock.acquire(self._timeout, reason=self._reason)

    def names_no_lock(self) -> NamesNoLock:
        """Return the error of a request that names no lock."""
        in_path = all(each.source == "path" for each in self.template.parameters)
        return NamesNoLock(404 if in_path else 422)

    def uses(self, source: str) -> bool:
        """Return True if a parameter comes from the ``"query"`` or the ``"body"``."""
        return any(each.source == source for each in self.template.parameters)

    def values(
        self,
        path: Mapping[str, object],
        query: Callable[[str], Sequence[str]],
        body: str | bytes | None,
    ) -> dict[str, object]:
        """Return the values of all parameters of a request, by name.

        Args:
            path: the parameters of the path.
            query: returns all values that the query has for a name; called only if a
                parameter is in the query, as frameworks raise for some queries.
            body: JSON; None: the request has none, or it is not needed.

        Raises:
            NamesNoLock: the query lacks a parameter, has it twice, or cannot be read;
                or the body is not a JSON object with a text or an integer of the name.
        """
        values = dict(path)
        for parameter in self.template.parameters:
            if parameter.source == "query":
                values[parameter.name] = self._in_query(query, parameter.key)
        if self.uses("body"):
            values |= self._in_body(body)
        return values

    def _in_query(self, query: Callable[[str], Sequence[str]], key: str) -> str:
        try:
            found = query(key)
        except ValueError as exc:
            # Werkzeug raises for bytes that are not UTF-8
            # (test_a_query_that_is_not_utf8).
            raise self.names_no_lock() from exc
        # Of two values, the handler may read the other one
        # (test_a_query_that_names_two_locks).
        if len(found) != 1:
            raise self.names_no_lock()
        return found[0]

    def _in_body(self, body: str | bytes | None) -> dict[str, object]:
        try:
            # Of a name that occurs twice, handlers read the last value, as this does.
            parsed: object = json.loads(body or b"")
        except (ValueError, RecursionError) as exc:
            raise self.names_no_lock() from exc
        if not isinstance(parsed, dict):
            raise self.names_no_lock()
        members = cast("dict[str, object]", parsed)
        values: dict[str, object] = {}
        for parameter in self.template.parameters:
            if parameter.source == "body":
                found = members.get(parameter.key)
                if type(found) not in (str, int):
                    raise self.names_no_lock()
                values[parameter.name] = found
        return values

    @property
    def own_lease(self) -> float | None:
        """The lease among the options of the hold, or None."""
        return self._options.get("lease")

    def lease(self, locks: Locks) -> float | None:
        """Return the lease with which ``locks`` holds the lock."""
        return self._options.get("lease", default_lease(locks))

    def check(self, path: str, kinds: Mapping[str, object]) -> None:
        """Raise ``ConfigurationError`` unless the template fits the path of a route.

        ``kinds`` maps each parameter of the path to the type that the handler declares,
        or to None if the path itself converts the parameter.
        """
        template = self.template
        for parameter in template.parameters:
            if parameter.source != "path":
                continue
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


class SeenHolds:
    """For how long this process has held the locks of each resource type.

    From that, and from what the store said of the holder, ``retry_after`` says when a
    client ought to ask again. May be used in any thread.
    """

    def __init__(self) -> None:
        self.default_lease: float | None = DEFAULT_LEASE
        self._durations: dict[str, deque[float]] = {}
        self._leases: dict[str, float] = {}

    def add(self, resource: str, lease: float | None, seconds: float) -> None:
        """Note that the lock with this label was held for so long, with this lease."""
        resource_type = _type_of(resource)
        durations = self._durations.get(resource_type)
        if durations is None:
            durations = self._durations.setdefault(resource_type, deque(maxlen=KEPT))
        durations.append(seconds)
        longest = max(lease or 0.0, self._leases.get(resource_type, 0.0))
        self._leases[resource_type] = longest

    def retry_after(self, error: LockError) -> float:
        """Return the seconds that a client ought to wait before it asks again.

        That is the median time of a hold, unless the holder of the lock is likely to be
        dead: then the rest of its lease.
        """
        resource_type = _type_of(getattr(error, "resource", ""))
        rest = error.retry_after if isinstance(error, LockTimeout) else None
        lease = self._leases.get(resource_type) or self.default_lease or DEFAULT_LEASE
        # A holder renews its lease when two thirds of it are left.
        if rest is not None and rest < lease * OVERDUE:
            return rest
        durations = self._durations.get(resource_type)
        # A copy, as another thread may append.
        return median(list(durations)) if durations else 1.0


def _type_of(resource: str) -> str:
    return resource.partition("/")[0]


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """HTTP response with a JSON body, to be sent as the framework's own class."""

    status: int
    headers: dict[str, str]
    body: dict[str, object]
    content_type: str = PROBLEM


def note_release(error: BackendError, resource: str) -> None:
    """Note that the store failed behind a handler that was done, for the log."""
    error.add_note(f"the handler was done, and the release of {resource} unanswered")


HEALTHY = JsonAnswer(200, {}, {"status": "ok"}, "application/json")
"""The answer to a readiness probe if the store has answered."""


def answer(
    error: LockError, seen: SeenHolds, *, level: int = logging.WARNING
) -> JsonAnswer | None:
    """Return the HTTP response to a lock error, or None if the error shows a bug.

    A bug is left to the server, which logs it and answers 500. The text of an error
    names hosts and processes, so it is logged and not sent
    (test_not_in_time_is_423_and_says_when_but_not_who). ``level``: of the log record of
    a 503; that of a 423, which says who holds the lock and why, has level INFO.
    """
    status = error.status_hint
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    # The store did not answer in time: the resource may be free, so this is no 423
    # (test_answers_to_errors).
    if isinstance(error, LockTimeout) and error.unanswered:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    headers: dict[str, str] = {}
    if status in (HTTPStatus.LOCKED, HTTPStatus.SERVICE_UNAVAILABLE):
        seconds = _retry_after(error, seen)
        headers["Retry-After"] = str(seconds)
        refused = status == HTTPStatus.LOCKED
        told: dict[str, Any] = {"error": str(error), "retry_after": seconds}
        if where := getattr(error, "resource", ""):
            told["resource"] = where
        if notes := getattr(error, "__notes__", None):
            told["note"] = "; ".join(notes)
        event = "refused" if refused else "unavailable"
        log_event(log, event, logging.INFO if refused else level, **told)
    # RFC 9457: a problem about which its status says everything.
    title = HTTPStatus(status).phrase
    body: dict[str, object] = {"type": "about:blank", "title": title, "status": status}
    return JsonAnswer(status, headers, body)


def _retry_after(error: LockError, seen: SeenHolds) -> int:
    if isinstance(error, AcquireUncertain) or (
        isinstance(error, LockTimeout) and error.unanswered
    ):
        seconds = OUTAGE_RETRY
    elif isinstance(error, BackendError):
        seconds = error.retry_after or OUTAGE_RETRY
    elif isinstance(error, LockTimeout | LockBusy | TooManyWaiters):
        seconds = seen.retry_after(error)
    else:  # lost, or this process stops: others have the lock next
        seconds = 1.0
    # Whole seconds, and never 0, which would invite a client to poll.
    return max(1, min(MAX_RETRY, math.ceil(seconds)))
