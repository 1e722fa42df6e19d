"""Rows that fit a terminal: what does not fit stands below them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from aiorwlock_remote.cli.report import plain

Row = Sequence[str]

MOVABLE = ("WHO", "FENCE", "HOLDER")
"""Go below, in this order, if a terminal is too narrow."""
GAP, INDENT = "  ", "    "


def lay_out(head: Row, rows: Sequence[Row], width: int) -> tuple[str, list[list[str]]]:
    """The headings, and the lines of each row, none wider than ``width``.

    Of the columns that do not fit ``MOVABLE`` go below; what still does not is cut.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    beside = list(range(len(head)))
    below: list[int] = []
    for name in MOVABLE:
        if sum(widths[n] for n in beside) + len(GAP) * (len(beside) - 1) <= width:
            break
        if name in head:
            beside.remove(head.index(name))
            below.append(head.index(name))

    def line(cells: Row) -> str:
        padded = (set_cell_size(cells[n], widths[n]) for n in beside)
        return cut(GAP.join(padded).rstrip(), width)

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
        longer = f"{lines[-1]}{GAP}{word}" if lines else ""
        if longer and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"{INDENT}{word}")
    return [cut(line, width) for line in lines]


def _named(heading: str, cell: str) -> str:
    """Below there are no headings; who it is tells itself."""
    return cell if heading == "WHO" else f"{heading.lower()} {cell}"
