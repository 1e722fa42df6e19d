"""What a terminal shows of a view: lines of text that fit, each with a style.

Rows that fit a terminal: what does not fit stands below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from aiorwlock_remote.cli.format import (
    RESOURCE_HEAD,
    moment,
    resource_rows,
    span,
    waiting,
)
from aiorwlock_remote.cli.report import plain
from aiorwlock_remote.cli.watch.state import in_words

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
