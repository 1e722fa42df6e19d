"""Locks as decorators of async functions: taken anew for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from inspect import Parameter, Signature, iscoroutinefunction, signature
from string import Formatter
from typing import Any, ParamSpec, TypeVar, final

from aiorwlock_remote.core.names import ResourceId, id_text
from aiorwlock_remote.core.text import check_str, quoted
from aiorwlock_remote.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")

_EXAMPLE = "'{order_id}' for the parameter order_id"


def is_async(function: object) -> bool:
    """Return True for an async function, and an object whose ``__call__`` is one."""
    # Of its class: a class is not async because its instances are
    # (test_methods_of_any_class_and_what_is_called_like_a_function).
    call: object = getattr(type(function), "__call__", None)  # noqa: B004 - not whether
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def check_async(function: object) -> None:
    """Raise ``ConfigurationError`` unless ``function`` is an async function."""
    if not is_async(function):
        raise ConfigurationError(
            what=f"{quoted(function)} is not an async function",
            hint="an async lock decorates `async def` only",
        )


def hold_during_calls(
    enter: Callable[P, AbstractAsyncContextManager[object]],
    function: Callable[P, Awaitable[T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return ``function`` with ``enter(…)`` entered for each call, with its arguments.

    Raise ``ConfigurationError`` unless ``function`` is an async function.
    """
    check_async(function)

    @wraps(function)
    async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
        # A lock swallows no error of its body, so the block returns or raises.
        async with enter(*args, **kwargs):
            return await function(*args, **kwargs)
        raise AssertionError("a lock swallowed an error")

    return locked


@final
class CallName:
    """A resource id made of the arguments of a call: ``"{shop}/{order_id}"``.

    A field is a parameter of the function, or an attribute of one (``{order.id}``). Its
    value is one that an id may have: int, str or UUID. Different values never make the
    same id: in an id of several parts, the characters that separate the parts are
    percent-encoded within a part.
    """

    def __init__(self, template: str, function: Callable[..., object]) -> None:
        """Raise ``ConfigurationError`` if the function has no such parameter."""
        self._template = template
        self._signature: Signature = signature(function)
        self._parts = _parse(template)
        literals = "".join(part for part in self._parts if isinstance(part, str))
        self._encoded = {ord(char): f"%{ord(char):02X}" for char in {*literals, "%"}}
        for part in self._parts:
            if isinstance(part, tuple):
                self._check_parameter(part[0])

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ResourceId:
        """Return the id for a call with these arguments.

        Raises:
            ConfigurationError: a value is not an int, str or UUID.
            TypeError: the function does not take these arguments.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = [
            part if isinstance(part, str) else _value(part, bound.arguments)
            for part in self._parts
        ]
        # A name of one field alone is the value itself: that of `mutex("order", 42)`.
        if len(values) == 1:
            return values[0]
        return "".join(
            part if isinstance(part, str) else id_text(value).translate(self._encoded)
            for part, value in zip(self._parts, values, strict=True)
        )

    def _check_parameter(self, name: str) -> None:
        parameter = self._signature.parameters.get(name)
        several = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
        if parameter is None or parameter.kind in several:
            known = ", ".join(self._signature.parameters)
            raise ConfigurationError(
                what=f"{quoted(self._template)}: the function has no parameter {name}",
                hint=f"it has: {known}" if known else "it has none",
            )


_Part = str | tuple[str, ...]
"""Literal text, or a field: a parameter and attributes of its value."""


def _parse(template: str) -> list[_Part]:
    parts: list[_Part] = []
    for literal, field, rest in _fields(template):
        if literal:
            parts.append(literal)
        if field is None:
            continue
        names = tuple(field.split("."))
        if rest or not all(name.isidentifier() for name in names):
            raise _no_template(template)
        if parts and isinstance(parts[-1], tuple):
            raise ConfigurationError(
                what=f"{quoted(template)}: two fields without a text between them",
                hint="a/bc and ab/c would have one name",
            )
        parts.append(names)
    if not any(isinstance(part, tuple) for part in parts):
        raise ConfigurationError(
            what=f"{quoted(template)} names no parameter",
            hint="a fixed name is that of a lock: @locks.mutex(…)",
        )
    return parts


def _fields(template: object) -> list[tuple[str, str | None, str]]:
    # Literal text, the field that follows, and what a field of a name has not: a format
    # or a conversion.
    try:
        return [
            (literal, field, (spec or "") + (conversion or ""))
            for literal, field, spec, conversion in Formatter().parse(
                check_str("template", template)
            )
        ]
    except ConfigurationError:
        raise
    except ValueError:
        raise _no_template(template) from None


def _no_template(template: object) -> ConfigurationError:
    return ConfigurationError(
        what=f"{quoted(template)} is not a template of names", hint=_EXAMPLE
    )


def _value(field: tuple[str, ...], arguments: Mapping[str, Any]) -> ResourceId:
    value: ResourceId = arguments[field[0]]
    for attribute in field[1:]:
        value = getattr(value, attribute)
    id_text(value)  # raises for what is no id
    return value
