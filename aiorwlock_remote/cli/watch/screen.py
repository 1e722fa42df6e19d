"""The screen of ``rwlock watch``: lines that fit the terminal, drawn with rich."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

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
from aiorwlock_remote.cli.streams import check_reader
from aiorwlock_remote.cli.watch.state import WatchOutput, WatchState, in_words
from aiorwlock_remote.core.text import plain

if TYPE_CHECKING:
    from datetime import datetime

    from aiorwlock_remote import LockInfo


Row = Sequence[str]

MOVABLE = ("WHO", "FENCE", "HOLDER")
"""Columns that are moved below their row, in this order, on a narrow terminal."""
COLUMN_GAP, INDENT = "  ", "    "


def lay_out(head: Row, rows: Sequence[Row], width: int) -> tuple[str, list[list[str]]]:
    """Return the heading line, and for each row its lines, none wider than ``width``.

    ``head``: a heading for each column. If the columns do not fit side by side, those
    in ``MOVABLE`` are printed on further lines below their row.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    beside = list(range(len(head)))
    below: list[int] = []
    for name in MOVABLE:
        gaps = len(COLUMN_GAP) * (len(beside) - 1)
        if sum(widths[n] for n in beside) + gaps <= width:
            break
        if name in head:
            beside.remove(head.index(name))
            below.append(head.index(name))

    def line(cells: Row) -> str:
        padded = (set_cell_size(cells[n], widths[n]) for n in beside)
        return cut(COLUMN_GAP.join(padded).rstrip(), width)

    def lines(cells: Row) -> list[str]:
        # Below there are no headings; WHO needs none.
        more = [
            cells[n] if head[n] == "WHO" else f"{head[n].lower()} {cells[n]}"
            for n in below
            if cells[n]
        ]
        return [line(cells), *_packed(more, width)]

    return line(head), [lines(row) for row in rows]


def cut(text: str, width: int) -> str:
    """Return the text, cut and with ``…`` at its end if it is wider than ``width``."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 1 else text[:width]


def _packed(words: Row, width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}{COLUMN_GAP}{word}" if lines else ""
        if longer and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"{INDENT}{word}")
    return [cut(line, width) for line in lines]


# --------------------------------------------------------------------- what is drawn

HIGHLIGHT_SECONDS = 5.0
"""Seconds for which a resource that changed is bold, at least for two scans."""
SLOW_REPLY_SECONDS = 2.0
"""Seconds without an answer to a scan after which the screen says so."""
LOG_LINES, MIN_LINES_FOR_LOG = 8, 12
"""Lines for the last changes, on a terminal that has at least so many lines."""

PLAIN, HEAD, NEW, OVER, BAD, DIM = "", "bold", "bold", "red", "bold red", "dim"


class Line(NamedTuple):
    """A line of the screen, and the name of its style in rich."""

    text: str
    style: str = PLAIN


class Size(NamedTuple):
    """The columns and lines of a terminal."""

    width: int
    height: int


def render(
    view: WatchState, title: str, every: float, now: float, size: Size
) -> list[Line]:
    """Return the lines of the screen, as many and as wide as fit.

    ``view``: what is shown; ``title``: text for the first line; ``every``: seconds
    between scans; ``now``: present time in seconds of the monotonic clock.
    """
    width, height = size
    top = [Line(_title(view, title)), *_trouble(view, now)]
    log = _log(view, min(LOG_LINES, height // 3) if height >= MIN_LINES_FOR_LOG else 0)
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
    # Rows beyond the last line are not made: they would widen columns for nothing, and
    # a store may list thousands (test_the_screen_fits_the_terminal).
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
    # The longest wait first, then resources without waiters by name.
    longest = max((queued.age for queued in seen.queue), default=-1.0)
    return -longest, seen.target.label


def _style(view: WatchState, seen: LockInfo, row: Sequence[str], fresh: float) -> str:
    # What is known of a store that does not answer may be old.
    if view.trouble:
        return DIM
    over = any(
        one.holder == row[2] and one.expires_in is not None and one.expires_in <= 0
        for one in seen.holders
    )
    new = view.changed_since(seen, fresh)
    return " ".join(style for style, on in ((OVER, over), (NEW, new)) if on)


def _log(view: WatchState, most: int) -> list[Line]:
    # Newest last, below an empty line.
    last = list(view.log)[-max(most - 1, 0) :] if most > 1 else []
    lines = [
        Line(f"{_time(when)}  {in_words(change)}", NEW if when == view.as_of else DIM)
        for when, change in last
    ]
    return [Line(""), *lines] if lines else []


def _time(when: datetime) -> str:
    return moment(when, "seconds").partition("T")[2]


# ------------------------------------------------------------------- drawing with rich


class ScreenOutput(WatchOutput):
    """Draws the terminal's alternate screen, and closes that screen at the end.

    ``draw`` returns the lines for a terminal of a given size. The alternate screen
    leaves no traces when it is resized. At the end the last picture is printed on the
    ordinary screen, so that names can be copied from it.
    """

    def __init__(
        self, console: Console, draw: Callable[[Size], Sequence[Line]]
    ) -> None:
        self._console = console
        self._draw = draw
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def check(self) -> None:
        check_reader(self._console.file.fileno())

    def paint(self) -> None:
        # The first picture takes the alternate screen: until then errors are printed.
        self._live.start()
        self._live.update(self._text(), refresh=True)

    def leave(self) -> None:
        self._live.stop()

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
