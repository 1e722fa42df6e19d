"""Who is inside of an ``async with``: nobody, or one."""

from __future__ import annotations

from types import TracebackType
from typing import final

from aiorwlock_remote.errors import ConfigurationError


@final
class Inside:
    """Whether an object that only one at a time may enter was entered.

    A second one would take the first one's place, and leave in its name. ``with`` it
    one gets in: entered from its beginning on, until ``left``, or until that fails.
    """

    __slots__ = ("_entered", "_what")

    def __init__(self, what: str) -> None:
        """``what``: how the object is made, for messages."""
        self._what = what
        self._entered = False

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
