"""Options and arguments that several commands take."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aiorwlock_remote.core.names import check_prefix, split_label, type_from_label
from aiorwlock_remote.core.url import Address, parse, with_prefix
from aiorwlock_remote.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


class FloatRange(click.FloatRange):
    """One that NaN is not in: it is neither too small nor too large."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def _prefixed(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    """The URL with the prefix in it: commands know one thing, where the locks are."""
    del param
    prefix = ctx.meta.get(_PREFIX)
    return with_prefix(value, check_prefix(prefix)) if value and prefix else value


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    del param
    ctx.meta[_PREFIX] = value


_PREFIX = "aiorwlock_remote.prefix"
_prefix = click.option(
    "--prefix",
    envvar="RWLOCK_PREFIX",
    show_envvar=True,
    metavar="TEXT",
    is_eager=True,  # before the URL, which it becomes a part of
    expose_value=False,
    callback=_note,
    help="As connect() has it: the beginning of every TYPE, which is not shown then.",
)
_url = click.option(
    "--url",
    envvar="RWLOCK_URL",
    show_envvar=True,
    metavar="URL",
    callback=_prefixed,
    help="Where the locks are, e.g. sqlite:////var/lib/app/locks.db.",
)
_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


def as_json(function: F) -> F:
    """The option ``--json``."""
    return _json(function)


def _split(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    kind, number = split_label(value)
    if not kind or not number:
        raise click.BadParameter(
            f"{value!r} is not TYPE/ID, for example order/42", ctx, param
        )
    return kind, number


def _type(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    del ctx, param
    return None if value is None else type_from_label(value)


def store_option(function: F) -> F:
    """``--url``, with the prefix of ``--prefix`` in it; see ``store_url``."""
    return _url(_prefix(function))


def _installed(ctx: click.Context, param: click.Parameter, value: str) -> str:
    del param
    if value == "trio" and find_spec("trio") is None:
        text = "--loop trio: trio is not installed; pip install trio"
        raise click.UsageError(text, ctx)
    return value


def loop_option(function: F) -> F:
    """``--loop``: asyncio or trio."""
    return click.option(
        "--loop",
        type=click.Choice(["asyncio", "trio"]),
        default="asyncio",
        show_default=True,
        callback=_installed,
        help="The event loop of all processes.",
    )(function)


def resource_argument(function: F) -> F:
    """``TYPE/ID``, split at the first slash, as ``target``."""
    return click.argument("target", metavar="TYPE/ID", callback=_split)(function)


def type_argument(function: F) -> F:
    """``[TYPE]``, as ``resource_type``: all if it is None."""
    return click.argument(
        "resource_type", metavar="[TYPE]", required=False, callback=_type
    )(function)


def store_url(url: str | None, *, must_exist: bool = False, used: bool = False) -> str:
    """The URL to connect to.

    ``must_exist``: a file or directory is not to be made. ``used``: nor to be empty:
    who looks at a mistyped path must not read there that nothing is held.

    Raises:
        ConfigurationError: none given, or one that no other process can share.
    """
    if not url:
        raise ConfigurationError(
            what="no store is given",
            hint="use --url or set RWLOCK_URL, e.g. sqlite:////var/lib/app/locks.db",
        )
    address = parse(url)
    if address.scheme == "memory":
        raise ConfigurationError(
            what="memory:// locks are those of one process",
            hint="commands need a store that processes share, e.g. sqlite:///locks.db",
        )
    path = path_of(address)
    if (must_exist or used) and path is not None:
        if not path.exists():
            raise ConfigurationError(
                what=f"{path} does not exist", hint="is the path in the URL right?"
            )
        if used and _is_empty(path):
            raise ConfigurationError(
                what=f"{path} is empty: no lock was ever taken there",
                hint="is the path in the URL right, and mounted?",
            )
    return url


def _is_empty(path: Path) -> bool:
    """One that a program has opened for its locks never is."""
    if path.is_dir():
        with os.scandir(path) as entries:
            return next(entries, None) is None
    return path.stat().st_size == 0


def path_of(address: Address) -> Path | None:
    """The file or directory that the locks are in; None: they are in a server."""
    if address.scheme == "sqlite":  # whose paths may be relative
        return Path(address.path.removeprefix("/"))
    return Path(address.path) if address.scheme == "file" else None
