"""What is entered by ``async with``: by one at a time, and not forgotten."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import final

from aiorwlock_remote.errors import ConfigurationError


@final
class SingleEntry:
    """Whether an object that only one at a time may enter was entered.

    A second one would take the first one's place, and leave in its name. ``with`` it
    one gets in: entered from its beginning on, until ``left``, or until that fails.

    One that is made for being used at once, and goes without, was forgotten: there is a
    ``RuntimeWarning``, as of coroutines.
    """

    __slots__ = ("_entered", "_unused", "_what")

    def __init__(self, what: str, unused: Callable[[], str] | None = None) -> None:
        """``what``: how the object is made, for messages.

        ``unused()``: what is said to have been forgotten if nobody uses it.
        """
        self._what = what
        self._unused = unused
        self._entered = False

    def used(self) -> None:
        """It is awaited."""
        self._unused = None

    def __enter__(self) -> None:
        """Begin to get in.

        Raises:
            ConfigurationError: somebody has, and has not left.
        """
        if self._entered:
            raise ConfigurationError(
                what=f"this {self._what} is entered already",
                hint=f"a new {self._what} for each block",
            )
        self._entered = True
        self._unused = None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self.left()

    def left(self) -> None:
        """It can be entered again."""
        self._entered = False

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self._unused is not None:
            done = "nothing is done; await it, or enter it by async with"
            message = f"{self._unused()} was never awaited: {done}"
            warn(message, RuntimeWarning, source=self)
