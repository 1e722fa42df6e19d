"""Prints errors for users: one line on stderr, with what to do, and an exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from aiorwlock_remote.cli.exit_codes import REFUSED, SIGNAL, UNAVAILABLE, USAGE
from aiorwlock_remote.cli.streams import null_stream
from aiorwlock_remote.core.text import plain
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
    """A command cannot continue; the error's text is one line for the user."""


def print_message(text: str) -> None:
    """Print one line on stderr; do nothing if nothing reads stderr any more."""
    try:
        click.echo(f"rwlock: {plain(text)}", err=True)
    except OSError:
        # The command goes on without its messages. The old stream still has the line
        # in its buffer, and Python would fail to flush that at exit.
        sys.stderr = null_stream()


def report(error: Exception) -> int:
    """Print an error and return its exit code; raise the error if it is a bug."""
    for leaf in _leaves(error):
        match leaf:
            case LockError():
                print_message(_with_advice(leaf))
                codes = (code for kind, code in _CODES if isinstance(leaf, kind))
                return next(codes, REFUSED)
            case click.UsageError():
                ctx = leaf.ctx
                more = f"; see {ctx.command_path} --help" if ctx is not None else ""
                print_message(leaf.format_message().removesuffix(".") + more)
                return USAGE
            case click.Abort():
                return SIGNAL + 2
            case BrokenPipeError():
                # Not a failure: main() ends `rwlock ls | head` with 0.
                raise leaf
            case OSError() | CommandFailed():
                print_message(str(leaf))
                return REFUSED
            case _:
                pass
    raise error


# Commands that run tasks raise what went wrong in groups.
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
