"""Options and arguments that several commands take."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import anyio
import click

from aiorwlock_remote import connect
from aiorwlock_remote.core.names import (
    check_prefix,
    is_cut,
    split_label,
    type_from_label,
)
from aiorwlock_remote.core.url import Address, parse, with_prefix
from aiorwlock_remote.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiorwlock_remote import Locks

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class CommandDecorator(Protocol):
    """Decorator of a command that adds an option or argument to the command."""

    def __call__(self, function: F, /) -> F: ...


class FloatRange(click.FloatRange):
    """A ``click.FloatRange`` that also rejects NaN, which click accepts."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Seconds(click.ParamType[float]):
    """A time in seconds, or in the unit that it names: ``90``, ``15m``, ``1d``."""

    name = "seconds"
    _UNITS: ClassVar[dict[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

    def convert(
        self,
        value: str | float,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        if isinstance(value, float):  # a default
            return value
        text = str(value)
        unit = self._UNITS.get(text[-1:])
        try:
            return float(text) if unit is None else float(text[:-1]) * unit
        except ValueError:
            hint = "a time is a number of seconds, or has a unit: 90, 15m, 6h, 1d"
            self.fail(f"{value!r} is no time; {hint}.", param, ctx)


class Utf8Text(click.ParamType[str]):
    """A text whose bytes are UTF-8, whatever encoding the locale says.

    Names are stored as UTF-8, and Python decodes arguments by the locale: in one of
    Latin-1 an ``é`` would arrive as two letters, in ``C`` as bytes that are no text. An
    argument whose bytes are not UTF-8 stays as Python has decoded it.
    """

    name = "text"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        del param, ctx
        try:
            return os.fsencode(value).decode()
        except UnicodeError:
            return value


SECONDS = Seconds()


def number_option(
    name: str,
    text: str,
    default: float | None = None,
    *,
    metavar: str = "S",
    kind: click.IntRange | click.FloatRange | Seconds = SECONDS,
) -> Callable[[F], F]:
    """Return a decorator of commands: adds an option that takes a number, or S seconds.

    ``text``: for the help, which also shows the ``default`` unless that is None.
    """
    return click.option(
        name,
        type=kind,
        default=default,
        show_default=default is not None,
        metavar=metavar,
        help=text,
    )


# --------------------------------------------------------------------- the store


def _keep_prefix(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    del param
    ctx.meta[_PREFIX] = value


def _prefixed(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    # The URL includes the prefix, so that commands need only the URL.
    del param
    prefix = ctx.meta.get(_PREFIX)
    return with_prefix(value, check_prefix(prefix)) if value and prefix else value


_PREFIX = "aiorwlock_remote.prefix"
_prefix = click.option(
    "--prefix",
    envvar="RWLOCK_PREFIX",
    show_envvar=True,
    type=Utf8Text(),
    metavar="TEXT",
    is_eager=True,  # before the URL, which it becomes a part of
    expose_value=False,
    callback=_keep_prefix,
    help="The beginning of every TYPE, as connect() has it; it is not shown.",
)
_url = click.option(
    "--url",
    envvar="RWLOCK_URL",
    show_envvar=True,
    metavar="URL",
    callback=_prefixed,
    help="Where the locks are, e.g. sqlite:////var/lib/app/locks.db.",
)


def store_option(function: F) -> F:
    """Decorator of a command: adds ``--url``, ``--prefix``, passed as one ``url``."""
    return _url(_prefix(function))


def store_url(
    url: str | None, *, must_exist: bool = False, must_be_used: bool = False
) -> str:
    """Return the URL to connect to, or raise ``ConfigurationError``.

    Args:
        url: The value of ``--url``.
        must_exist: Refuse a file or folder that does not exist, and would be created.
        must_be_used: Also refuse an empty one: a command that looks at a mistyped
            path, or at a folder where no disk is mounted, would show that nothing is
            held (test_an_empty_place_is_not_taken_for_an_unused_store).
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
    if (must_exist or must_be_used) and path is not None:
        if not path.exists():
            raise ConfigurationError(
                what=f"{path} does not exist", hint="is the path in the URL right?"
            )
        # A file or folder that a program has opened for its locks is never empty.
        if must_be_used and _is_empty(path):
            raise ConfigurationError(
                what=f"{path} is empty: no lock was ever taken there",
                hint="is the path in the URL right, and mounted?",
            )
    return url


def on_store(url: str, use: Callable[[Locks], Coroutine[Any, Any, T]]) -> T:
    """Connect to the store in a new event loop; return what ``use(locks)`` returns."""

    async def main() -> T:
        async with connect(url) as locks:
            return await use(locks)

    return asyncio.run(main())


def path_of(address: Address) -> Path | None:
    """Return the file or folder that contains the locks; None for a server."""
    if address.scheme == "sqlite":  # its path may be relative
        return Path(address.path.removeprefix("/"))
    return Path(address.path) if address.scheme == "file" else None


def _is_empty(path: Path) -> bool:
    if path.is_dir():
        with os.scandir(path) as entries:
            return next(entries, None) is None
    return path.stat().st_size == 0


# ------------------------------------------------------------- resources and types


def _split(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    kind, number = split_label(value)
    if not kind or not number:
        raise click.BadParameter(
            f"{value!r} is not TYPE/ID, for example order/42", ctx, param
        )
    return kind, number


COMPLETION_TIMEOUT = 2.0
"""Seconds for which a shell waits for the names of resources."""
MAX_COMPLETIONS = 100


def _resource_names(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[str]:
    """Return the resources that are held or waited for and begin with the text."""
    del param

    async def begin_so(locks: Locks) -> list[str]:
        found: list[str] = []
        with anyio.move_on_after(COMPLETION_TIMEOUT):
            async with aclosing(locks.list()) as listed:
                async for seen in listed:
                    if seen.target.label.startswith(incomplete):
                        found.append(seen.target.label)
                    if len(found) == MAX_COMPLETIONS:
                        break
        return found

    try:
        url = store_url(ctx.params.get("url"), must_be_used=True)
        return sorted(on_store(url, begin_so))
    except Exception:  # noqa: BLE001 - an error would be printed into the command line
        return []


resource_argument: CommandDecorator = click.argument(
    "target",
    metavar="TYPE/ID",
    type=Utf8Text(),
    callback=_split,
    shell_complete=_resource_names,
)
"""Decorator of a command: adds ``TYPE/ID``, passed as ``target``: (type, id)."""


semaphore_option: CommandDecorator = click.option(
    "--semaphore",
    is_flag=True,
    help="TYPE/ID is a semaphore, and not the lock of the same name.",
)
"""Decorator of a command: adds the flag ``--semaphore``."""


def check_whole(target: tuple[str, str]) -> tuple[str, str]:
    """Return ``target``; raise ``click.UsageError`` if its name was cut for display."""
    # Long names are shown cut: a copy of one is the name of another resource
    # (test_a_name_too_long_to_be_shown).
    if any(map(is_cut, target)):
        raise click.UsageError("TYPE/ID is cut where it is shown; the whole is needed.")
    return target


def _type(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    del ctx, param
    return None if value is None else type_from_label(value)


type_argument: CommandDecorator = click.argument(
    "resource_type", metavar="[TYPE]", required=False, type=Utf8Text(), callback=_type
)
"""Decorator of a command: adds ``[TYPE]``, passed as ``resource_type`` or None."""


# ---------------------------------------------------------------- output and loops


as_json: CommandDecorator = click.option(
    "--json", "as_json", is_flag=True, help="JSON on stdout."
)
"""Decorator of a command: adds the flag ``--json``, passed as ``as_json``."""


every_option: CommandDecorator = number_option(
    "--every", "Seconds from one scan of the store to the next; 0.2 at least.", 1.0
)
fail_option: CommandDecorator = click.option(
    "--fail", is_flag=True, help="Exit code 1 if there is any: for cron and Nagios."
)
"""Decorator of a command: adds the flag ``--fail``, passed as ``fail``."""


def _installed(ctx: click.Context, param: click.Parameter, value: str) -> str:
    del param
    # Found out here, not by a worker process that ends with a traceback.
    if value == "trio" and find_spec("trio") is None:
        text = "--loop trio: trio is not installed; pip install trio"
        raise click.UsageError(text, ctx)
    return value


loop_option: CommandDecorator = click.option(
    "--loop",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    show_default=True,
    callback=_installed,
    help="The event loop of all processes.",
)
"""Decorator of a command: adds ``--loop``, asyncio or trio, passed as ``loop``."""
