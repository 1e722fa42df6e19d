"""What a terminal shows of a view: lines of text that fit, each with a style.

Rows that fit a terminal: what does not fit stands below them.

A picture at a terminal, painted anew in its place.

A line for each change, for files and programs.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self, final

import anyio
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from aiorwlock_remote.cli.format import (
    RESOURCE_HEAD,
    moment,
    resource_rows,
    span,
    waiting,
)
from aiorwlock_remote.cli.report import plain
from aiorwlock_remote.cli.watch.state import Change, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from aiorwlock_remote import LockInfo
    from aiorwlock_remote.cli.watch.state import WatchState


Row = Sequence[str]

MOVABLE = ("WHO", "FENCE", "HOLDER")
"""Go below, in this order, if a terminal is too narrow."""
COLUMN_GAP, INDENT = "  ", "    "


def lay_out(head: Row, rows: Sequence[Row], width: int) -> tuple[str, list[list[str]]]:
    """The headings, and the lines of each row, none wider than ``width``.

    Of the columns that do not fit ``MOVABLE`` go below; what still does not is cut.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    beside = list(range(len(head)))
    below: list[int] = []
    for name in MOVABLE:
        if (
            sum(widths[n] for n in beside) + len(COLUMN_GAP) * (len(beside) - 1)
            <= width
        ):
            break
        if name in head:
            beside.remove(head.index(name))
            below.append(head.index(name))

    def line(cells: Row) -> str:
        padded = (set_cell_size(cells[n], widths[n]) for n in beside)
        return cut(COLUMN_GAP.join(padded).rstrip(), width)

    def lines(cells: Row) -> list[str]:
        more = [_named(head[n], cells[n]) for n in below if cells[n]]
        return [line(cells), *_packed(more, width)]

    return line(head), [lines(row) for row in rows]


def cut(text: str, width: int) -> str:
    """No wider than that."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 1 else text[:width]


def _packed(words: Row, width: int) -> list[str]:
    """As few indented lines as they fit in; one that is too long alone is cut."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}{COLUMN_GAP}{word}" if lines else ""
        if longer and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"{INDENT}{word}")
    return [cut(line, width) for line in lines]


def _named(heading: str, cell: str) -> str:
    """Below there are no headings; who it is tells itself."""
    return cell if heading == "WHO" else f"{heading.lower()} {cell}"


HIGHLIGHT_SECONDS = 5.0
"""Seconds for which a resource that changed stands out; at least two rounds."""
SLOW_REPLY_SECONDS = 2.0
"""Seconds without an answer after which that is said."""
LOG_LINES, LOG_FROM = 8, 12
"""So many of the last changes, from so many lines of the terminal on."""

PLAIN, HEAD, NEW, OVER, BAD, DIM = "", "bold", "bold", "red", "bold red", "dim"


class Line(NamedTuple):
    """A line, and how it looks."""

    text: str
    style: str = PLAIN


class Size(NamedTuple):
    """Of a terminal."""

    width: int
    height: int


def render(
    view: WatchState, title: str, every: float, now: float, size: Size
) -> list[Line]:
    """No more lines than fit, none of them too wide."""
    width, height = size
    top = [Line(_title(view, title)), *_trouble(view, now)]
    log = _log(view, min(LOG_LINES, height // 3) if height >= LOG_FROM else 0)
    room = height - len(top) - len(log)
    lines = [
        *top,
        *_table(view, now - max(HIGHLIGHT_SECONDS, 2 * every), size, room),
        *log,
    ]
    return [Line(cut(plain(line.text), width), line.style) for line in lines][:height]


def _title(view: WatchState, title: str) -> str:
    held = sum(seen.locked for seen in view.found)
    queue = waiting(queued for seen in view.found for queued in seen.queue)
    as_of = "" if view.as_of is None else f"{_time(view.as_of)}  "
    return f"{as_of}{held} held, waiting: {queue or 'nobody'}  {title}"


def _trouble(view: WatchState, now: float) -> list[Line]:
    if view.trouble_since is not None:
        since = _time(view.trouble_since)
        return [Line(f"unavailable since {since}: {view.trouble}", BAD)]
    if view.asked_at is not None and now - view.asked_at >= SLOW_REPLY_SECONDS:
        return [Line(f"no answer for {span(now - view.asked_at)}", BAD)]
    return []


def _table(view: WatchState, fresh: float, size: Size, room: int) -> list[Line]:
    if view.as_of is None:
        return []
    found = sorted(view.found, key=_urgency)
    if not found:
        return [Line("nothing is held or waited for")][:room]
    # Rows that have no place in any case are not made, and widen no column.
    rows = ((seen, row) for seen in found for row in resource_rows(seen))
    shown = list(islice(rows, max(room, 0)))
    head, blocks = lay_out(RESOURCE_HEAD, [row for _, row in shown], size.width)
    lines = [Line(head, HEAD)]
    left = sum(max(len(seen.holders), 1) for seen in found)
    for (seen, row), block in zip(shown, blocks, strict=True):
        if len(lines) + len(block) + (left > 1) > room:
            break
        style = _style(view, seen, row, fresh)
        lines += [Line(text, style) for text in block]
        left -= 1
    if left:
        lines.append(Line(f"… and {left} more", DIM))
    return lines


def _urgency(seen: LockInfo) -> tuple[float, str]:
    """Who waits longest comes first; then what nobody waits for, by name."""
    longest = max((queued.age for queued in seen.queue), default=-1.0)
    return -longest, seen.target.label


def _style(view: WatchState, seen: LockInfo, row: Sequence[str], fresh: float) -> str:
    if view.trouble:
        return DIM
    over = any(
        one.holder == row[2] and one.expires_in is not None and one.expires_in <= 0
        for one in seen.holders
    )
    new = view.changed_since(seen, fresh)
    return " ".join(style for style, on in ((OVER, over), (NEW, new)) if on)


def _log(view: WatchState, most: int) -> list[Line]:
    """The last changes, newest last and standing out, below an empty line."""
    last = list(view.log)[-max(most - 1, 0) :] if most > 1 else []
    lines = [
        Line(f"{_time(when)}  {in_words(change)}", NEW if when == view.as_of else DIM)
        for when, change in last
    ]
    return [Line(""), *lines] if lines else []


def _time(when: datetime) -> str:
    """Of the day."""
    return moment(when, "seconds").partition("T")[2]


PIPE_RETRY_INTERVAL = 0.05
"""Seconds after which a pipe that was full is looked at again."""


@final
class LineOutput:
    """Each is written out at once."""

    def __init__(self, form: Callable[[Change, datetime], str], fd: int) -> None:
        """``form``: a change as one line. ``fd``: where it is written to."""
        self._form = form
        self._fd = fd

    def check(self) -> None:
        """As ``WatchOutput``: who reads no more is noticed though nothing changes."""
        check_reader(self._fd)

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``WatchOutput``; can be cancelled while the reader takes its time.

        A write that blocks would keep signals waiting. One of so few bytes does not,
        if the pipe is ready.
        """
        lines = [plain(self._form(change, when)) + "\n" for change in changes]
        left = "".join(lines).encode(errors="backslashreplace")
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        while left:
            if ready.poll(0):
                left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]
            else:
                await anyio.sleep(PIPE_RETRY_INTERVAL)

    def paint(self) -> None:
        """As ``WatchOutput``: there is no picture."""

    def leave(self) -> None:
        """As ``WatchOutput``: nothing was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Every line is out."""


def check_reader(fd: int) -> None:
    """Look whether it is a pipe, or a terminal, that nobody has open any more.

    Raises:
        BrokenPipeError: it is.
    """
    poll = select.poll()
    poll.register(fd, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


Draw = Callable[[Size], Sequence[Line]]


@final
class ScreenOutput:
    """On the terminal's other screen, so that a change of size leaves no traces.

    The last picture stays on the ordinary one: what it names may be wanted.
    """

    def __init__(self, console: Console, draw: Draw) -> None:
        """``draw``: what there is to see."""
        self._console = console
        self._draw = draw
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def check(self) -> None:
        """As ``WatchOutput``."""
        check_reader(self._console.file.fileno())

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``WatchOutput``: the picture tells."""

    def paint(self) -> None:
        """As ``WatchOutput``; the first one takes the terminal."""
        self._live.start()
        self._live.update(self._text(), refresh=True)

    def leave(self) -> None:
        """As ``WatchOutput``: as it was before, until it is painted again."""
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
