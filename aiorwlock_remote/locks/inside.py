"""Who is inside of an ``async with``: nobody, or one."""

from __future__ import annotations

from typing import final

from aiorwlock_remote.errors import ConfigurationError


@final
class Inside:
    """Whether an object that only one at a time may enter was entered.

    A second one would take the first one's place, and leave in its name.
    """

    __slots__ = ("_entered", "_what")

    def __init__(self, what: str) -> None:
        """``what``: how the object is made, for messages."""
        self._what = what
        self._entered = False

    def enter(self) -> None:
        """From now on, until ``left``.

        Raises:
            ConfigurationError: somebody has, and has not left.
        """
        if self._entered:
            raise ConfigurationError(
                what=f"this {self._what} is entered already",
                hint=f"a new {self._what} for each block",
            )
        self._entered = True

    def left(self) -> None:
        """It can be entered again."""
        self._entered = False
