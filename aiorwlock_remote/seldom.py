"""What is to be done now and then, however short the lives of processes are."""

from __future__ import annotations

from random import randrange


class Seldom:
    """Says yes once in so many times, of all processes together.

    The first time is left to chance: else processes that end soon, a command under a
    lock, would never come to it.
    """

    def __init__(self, every: int) -> None:
        """``every``: so many times."""
        self._every = every
        self._left = 1 + randrange(every)

    def now(self) -> bool:
        """Whether this is one of those times."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._every
        return True
