"""What is to be taken back if a ``Locks`` is closed before the answer is known.

Who waits for its turn is told by the gates. Whoever else asks for something that the
store may grant (a try, a move) asks ``under`` this: so that its tickets are withdrawn
while there still is a connection, and the grant that it was about to get is no one's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from aiorwlock_remote.errors import Closed


class InFlightGrants:
    """The requests of one ``Locks`` that may grant something. In the loop's thread."""

    def __init__(self) -> None:
        """None is under way."""
        self._under_way: dict[object, Callable[[], object]] = {}
        self._closed = False

    def check(self) -> None:
        """Refuse to send anything more.

        Raises:
            Closed: it is too late.
        """
        if self._closed:
            raise Closed

    def begin(self, take_back: Callable[[], object]) -> object:
        """A request is under way; what it is called by.

        Raises:
            Closed: it is not to be sent any more.
        """
        self.check()
        asked = object()
        self._under_way[asked] = take_back
        return asked

    def over(self, asked: object) -> bool:
        """It is; False: it was closed meanwhile, and ``take_back`` was called."""
        return self._under_way.pop(asked, None) is not None

    @contextmanager
    def under(self, take_back: Callable[[], object]) -> Generator[None, None, None]:
        """``with`` it a request is under way; nothing is awaited before.

        Left without an error, what it granted is handed out before anything is awaited.

        Raises:
            Closed: closed before or meanwhile; ``take_back`` was called then.
        """
        asked = self.begin(take_back)
        try:
            yield
        except BaseException:
            self.over(asked)
            raise
        if not self.over(asked):
            raise Closed

    def close(self) -> None:
        """Take it all back."""
        self._closed = True
        under_way, self._under_way = self._under_way, {}
        for take_back in under_way.values():
            take_back()
