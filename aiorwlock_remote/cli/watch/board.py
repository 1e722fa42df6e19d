"""A picture at a terminal, painted anew in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Self, final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from aiorwlock_remote.cli.watch.changes import Change
from aiorwlock_remote.cli.watch.lines import check_reader
from aiorwlock_remote.cli.watch.picture import Line, Size

Draw = Callable[[Size], Sequence[Line]]


@final
class Board:
    """On the terminal's other screen, so that a change of size leaves no traces.

    The last picture stays on the ordinary one: what it names may be wanted.
    """

    def __init__(self, console: Console, draw: Draw) -> None:
        """``draw``: what there is to see."""
        self._console = console
        self._draw = draw
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def check(self) -> None:
        """As ``Show``."""
        check_reader(self._console.file.fileno())

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``Show``: the picture tells."""

    def paint(self) -> None:
        """As ``Show``; the first one takes the terminal."""
        self._live.start()
        self._live.update(self._text(), refresh=True)

    def leave(self) -> None:
        """As ``Show``: as it was before, until it is painted again."""
        self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            with suppress(OSError):  # the terminal may be gone
                self._live.stop()
                self._console.print(self._text())

    def _text(self) -> Text:
        lines = self._draw(Size(*self._console.size))
        text = Text("\n").join(Text(line.text, line.style) for line in lines)
        text.no_wrap, text.overflow = True, "crop"
        return text
