"""Draw what growth costs, and write the tables: `python -m docs.pictures.growth`.

The figures are those of docs/pictures/growth.json, which `nox -s bench -- growth`
measures; the tables stand in docs/howto/sizing.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from docs.pictures.svg import FOLDER, Picture
from docs.pictures.tables import row, with_table

DATA = FOLDER / "growth.json"
PAGE = FOLDER.parent / "howto" / "sizing.md"
STORES = {
    "redis": ("Redis", "red"),
    "postgresql": ("PostgreSQL", "blue"),
    "mariadb": ("MariaDB", "green"),
    "sqlite": ("SQLite", "purple"),
    "cassandra": ("Cassandra", "orange"),
    "etcd": ("etcd", "text"),
}
"""Of each store, its name and the colour of its line."""
CURVES = {
    "held": "… held by one process",
    "clients": "… held by so many clients, one each",
    "tasks": "… waited for by tasks of one process",
    "rows": "… used once, and kept for their fences",
}
MARGIN, PANEL, TOP, BOTTOM = 42, 128, 66, 22
"""Left of a panel, its height, where the first begins, and room for its numbers."""
RIGHT, MOST_TIMES, MOST = 350, 64.0, 1_000_000
"""Where a panel ends, and the largest values of its axes."""

Point = dict[str, Any]


def measured() -> dict[str, dict[str, list[Point]]]:
    """Return the points of each store and curve, the smallest number first."""
    data = json.loads(DATA.read_text("utf-8"))
    return {
        store: {
            curve: [one for one in data[store]["points"] if one["curve"] == curve]
            for curve in CURVES
        }
        for store in STORES
        if store in data
    }


def picture(stores: dict[str, dict[str, list[Point]]]) -> Picture:
    """Draw how much dearer another process' cycle is, the more locks there are."""
    title = "What a cycle costs beside many other locks"
    drawn = Picture(title, TOP + len(CURVES) * (PANEL + BOTTOM + 18))
    drawn.words(10, 20, title, bold=True)
    drawn.words(10, 38, "One process takes and releases its lock, beside", "dim")
    drawn.words(
        10, 53, "so many others (to the right); 1x is beside the fewest.", "dim"
    )
    for number, (curve, name) in enumerate(CURVES.items()):
        top = TOP + number * (PANEL + BOTTOM + 18)
        drawn.words(10, top + 12, name, bold=True)
        _axes(drawn, top + 18)
        ends: list[float] = []
        for store, curves in stores.items():
            points = curves[curve]
            if points:
                _line(drawn, top + 18, store, points, ends)
    return drawn


def _axes(drawn: Picture, top: float) -> None:
    for times in (1, 4, 16, 64):
        y = _y(top, times)
        drawn.line((MARGIN, y), (RIGHT, y), width=0.5)
        drawn.words(MARGIN - 6, y + 4, f"{times}x", "dim", anchor="end")
    for power, label in ((1, "10"), (3, "1,000"), (5, "100,000")):
        x = _x(10**power)
        drawn.words(x, top + PANEL + 2, label, "dim", anchor="middle")


def _line(
    drawn: Picture, top: float, store: str, points: Sequence[Point], ends: list[float]
) -> None:
    first = points[0]["cycle"]
    at = [(_x(p["number"]), _y(top, p["cycle"] / first)) for p in points]
    name, color = STORES[store]
    drawn.line(*at, color=color, width=2)
    y = at[-1][1] + 4
    while any(abs(y - other) < 14 for other in ends):  # one label above the other
        y -= 14
    ends.append(y)
    drawn.words(RIGHT + 8, y, name, color)


def _x(number: float) -> float:
    share = (math.log10(number) - 1) / (math.log10(MOST) - 1)
    return round(MARGIN + share * (RIGHT - MARGIN), 1)


def _y(top: float, times: float) -> float:
    share = math.log2(min(max(times, 0.5), MOST_TIMES) * 2) / math.log2(MOST_TIMES * 2)
    return round(top + PANEL - 14 - share * (PANEL - 26), 1)


# ------------------------------------------------------------------------- tables

_Row = Callable[[Point], Sequence[str]]


def _cycle(point: Point) -> str:
    return f"{point['cycle']:.2f} ms ({point['slowest']:.1f} ms)"


def _held(point: Point) -> Sequence[str]:
    return (
        f"{point['renewals']:,.0f}",
        f"{point['client']:.0%}",
        f"{point['server']:.0%}",
        f"{point['memory']:.1f} kB",
        f"{point['lost']:,}",
        _cycle(point),
    )


def _clients(point: Point) -> Sequence[str]:
    return (
        f"{point['reached'] / point['number'] * 1e3:.1f} ms",
        f"{point['client']:.0%}",
        f"{point['server']:.0%}",
        f"{point['memory']:.0f} kB",
        f"{point['lost']:,}",
        _cycle(point),
    )


def _tasks(point: Point) -> Sequence[str]:
    return (
        f"{point['client']:.0%}",
        f"{point['server']:.0%}",
        f"{point['memory']:.1f} kB",
        f"{point['turns']:,.0f}",
        _cycle(point),
    )


def _rows(point: Point) -> Sequence[str]:
    return f"{point['number'] / point['reached']:,.0f}", _cycle(point)


TABLES: dict[str, tuple[tuple[str, ...], _Row]] = {
    "held": (
        (
            *("held", "renewals/s", "client", "server"),
            *("client's memory each", "lost", "another's cycle, p50 (p99)"),
        ),
        _held,
    ),
    "clients": (
        (
            *("clients", "to connect and acquire", "clients' CPU", "server"),
            *("client's memory each", "lost", "another's cycle, p50 (p99)"),
        ),
        _clients,
    ),
    "tasks": (
        (
            *("waiting", "client", "server", "client's memory each"),
            *("turns/s when let in", "another's cycle, p50 (p99)"),
        ),
        _tasks,
    ),
    "rows": (("kept", "locks/s while used", "another's cycle, p50 (p99)"), _rows),
}


def table(curve: str, stores: dict[str, dict[str, list[Point]]]) -> str:
    """Return the rows of one of the page's tables."""
    head, cells = TABLES[curve]
    lines = [row(("store", *head)), row("---" for _ in ("store", *head))]
    lines += [
        row((STORES[store][0], f"{point['number']:,}", *cells(point)))
        for store, curves in stores.items()
        for point in curves[curve]
    ]
    return "\n".join(lines) + "\n"


def cluster_table() -> str:
    """Return what a lock costs in a cluster, the more nodes there are."""
    head = ("nodes", "locks/s of one process", "CPU of all servers", "of the client")
    lines = [row(head), row("---" for _ in head)]
    data = json.loads(DATA.read_text("utf-8"))
    for point in data.get("redis-cluster", {"points": []})["points"]:
        each = [
            f"{1e6 * point[who] / point['turns']:.0f} µs"
            for who in ("server", "client")
        ]
        lines.append(row((str(point["number"]), f"{point['turns']:,.0f}", *each)))
    return "\n".join(lines) + "\n"


def calculated(stores: dict[str, dict[str, list[Point]]]) -> str:
    """Return what follows from the figures, for one core of the server."""
    head = (
        *("store", "renewals/s of one core", "held with `lease=30`"),
        "held with `lease=300`",
    )
    lines = [row(head), row("---" for _ in head)]
    for store, curves in stores.items():
        sound = [p for p in curves["held"] if not p["lost"] and p["renewals"] > 1]
        if not sound or not sound[-1]["server"]:  # an embedded one has no server
            continue
        least, most = curves["held"][0], sound[-1]
        a_core = most["renewals"] / max(most["server"] - least["server"], 0.01)
        cells = f"{a_core:,.0f}", f"{a_core * 10:,.0f}", f"{a_core * 100:,.0f}"
        lines.append(row((STORES[store][0], *map(_about, cells))))
    return "\n".join(lines) + "\n"


def _about(number: str) -> str:
    """Two digits are enough."""
    digits = number.replace(",", "")
    return f"{round(int(digits), 2 - len(digits)):,}"


def with_tables(page: str, stores: dict[str, dict[str, list[Point]]]) -> str:
    """Return the page with these rows in the places of its tables."""
    for curve in CURVES:
        page = with_table(page, table(curve, stores), f"table {curve}")
    page = with_table(page, cluster_table(), "table cluster")
    return with_table(page, calculated(stores), "table calculated")


def main() -> None:
    """Draw the picture, and write the tables into their page."""
    stores = measured()
    picture(stores).write("growth.svg")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), stores), "utf-8")


if __name__ == "__main__":
    main()
