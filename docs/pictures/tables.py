"""Tables that a script writes into a page, between two comments."""

from __future__ import annotations

from collections.abc import Iterable


def row(cells: Iterable[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def with_table(page: str, rows: str, name: str = "table") -> str:
    """Return the page with these rows in the place of the table of that name."""
    begin, end = f"% {name}: begin\n", f"% {name}: end\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{rows}\n{end}{after}"
