"""Errors as people see them: one line on stderr, what to do, and an exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from aiorwlock_remote.cli.exit_codes import REFUSED, SIGNAL, UNAVAILABLE, USAGE
from aiorwlock_remote.cli.streams import nowhere
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    ConfigurationError,
    LockError,
    TooManyWaiters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODES: tuple[tuple[type[LockError], int], ...] = (
    (ConfigurationError, USAGE),
    (BackendError, UNAVAILABLE),
    (AcquireUncertain, UNAVAILABLE),
)
_ADVICE: tuple[tuple[type[LockError], str], ...] = (
    (AcquireUncertain, "see `rwlock show`, or wait"),
    (BackendError, "is the store up, and the URL right?"),
    (TooManyWaiters, "try again later"),
)


class CommandFailed(Exception):
    """What a command has to say when it cannot go on, in one line."""


def plain(text: str) -> str:
    """Without anything that a terminal would act on: names are written by others."""
    return "".join(
        c
        if c.isprintable()
        else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


def tell(text: str) -> None:
    """One line on stderr; if nobody reads that any more, what is to be done goes on."""
    try:
        click.echo(f"rwlock: {plain(text)}", err=True)
    except OSError:  # what is left of it is not to fail at the end, either
        sys.stderr = nowhere()


def report(error: Exception) -> int:
    """Tell the error; its exit code.

    Raises:
        Exception: the error itself, if it is a bug and not a failure.
    """
    for leaf in _leaves(error):
        match leaf:
            case LockError():
                tell(_with_advice(leaf))
                return next(
                    (c for kind, c in _CODES if isinstance(leaf, kind)), REFUSED
                )
            case click.UsageError():
                ctx = leaf.ctx
                more = f"; see {ctx.command_path} --help" if ctx is not None else ""
                tell(leaf.format_message().removesuffix(".") + more)
                return USAGE
            case click.Abort():
                return SIGNAL + 2
            case BrokenPipeError():
                raise leaf
            case OSError() | CommandFailed():
                tell(str(leaf))
                return REFUSED
            case _:
                pass
    raise error


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        for inner in group.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _with_advice(error: LockError) -> str:
    if getattr(error, "hint", ""):
        return str(error)
    found = (text for kind, text in _ADVICE if isinstance(error, kind))
    advice = next(found, "")
    return f"{error}; {advice}" if advice else str(error)
