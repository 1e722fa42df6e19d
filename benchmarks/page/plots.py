"""The plots of the page: SVG files for light and dark pages.

The same data make the same files.

Texts stay texts, the background is transparent, and every colour can be read on white
and on black.
"""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.cassandra import adapters as cassandra
from benchmarks.cassandra.scenarios import CYCLE as CASSANDRA_CYCLE
from benchmarks.etcd import adapters as etcd
from benchmarks.etcd.scenarios import CYCLE as ETCD_CYCLE
from benchmarks.harness.measures import (
    CLIENT_CPU,
    CPU_WHILE_WAITING,
    CYCLES,
    HAND_OVER,
    MEMORY_OF_HELD,
    MEMORY_OF_WAITER,
    SERVER_CPU,
    SERVER_MEMORY_OF_HELD,
    TURNS,
)
from benchmarks.harness.report import Figures, NotMeasured
from benchmarks.local import adapters as local
from benchmarks.local.scenarios import CYCLE as LOCAL_CYCLE
from benchmarks.page.data import Data, Summary, ratio, summary
from benchmarks.page.suites import (
    HELD_MEMORY,
    NUMBERS_OF_WAITERS,
    REDIS_PEERS,
    waiters_scenario,
)
from benchmarks.redis import adapters as redis
from benchmarks.redis.scenarios import (
    CYCLE,
    REQUESTS,
    REQUESTS_A_CYCLE,
    SERVER_MEMORY_OF_WAITER,
)
from benchmarks.sql import adapters as sql

INK = "#808891"
OURS = "#2f81d8"
FLOOR = "#9aa1a9"
SERVER = "#d8843b"
COLOURS = (
    *("#d8843b", "#2f9e6e", "#c75d9b", "#b59b1c"),
    *("#8f6fd1", "#cf5346", "#3aa5b5", "#8a7355"),
)
"""Of the peers, in their order."""
FLOORS = (redis.FLOOR, redis.BLPOP, sql.NOTIFY, sql.FLOOR, cassandra.FLOOR)
FONT = "DejaVu Sans"
"""Comes with matplotlib, which has to know how wide a text is."""
CUT = 5.0
"""A bar is cut where it is so many times as long as the median of all bars."""
POINTS = 50
"""Of a curve; the file of a plot stays small."""
WIDTH = 7.2
"""Inches; the page shows 100 pixels for one."""

_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": FONT,
    "font.size": 9,
    "grid.alpha": 0.35,
    "grid.color": INK,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "aiorwlock-remote",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
Axes = Any
"""Of matplotlib, whose methods have too many overloads to be of use here."""


def svg(name: str, data: Data) -> str:
    """Return a plot as the text of an SVG file.

    Args:
        name: A key of ``PLOTS``.
        data: Of the page.

    Raises:
        NotMeasured: There is nothing to show.
    """
    with mpl.rc_context(_STYLE):
        figure = PLOTS[name](data)
        file = io.StringIO()
        nothing_of_today = {"Date": None, "Creator": None}
        figure.savefig(file, format="svg", metadata=nothing_of_today)
    text = _TEXT_OR_NUMBER.sub(_rounded, file.getvalue())
    # Where the font is missing, one of the same width takes its place.
    text = text.replace(f"'{FONT}'", f"'{FONT}', Verdana, sans-serif")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


_TEXT_OR_NUMBER = re.compile(r">[^<]*<|\d+\.\d{3,}")


def _rounded(found: re.Match[str]) -> str:
    """Return a coordinate in hundredths of a point: nobody sees more; texts stay."""
    if found[0].startswith(">"):
        return found[0]
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


# ----------------------------------------------------------------- bars of each peer


@dataclass(frozen=True)
class Line:
    """One peer of a panel of bars."""

    label: str
    value: Summary
    colour: str
    beside: Summary | None = None
    """Stacked on the bar, in the server's colour."""

    @property
    def length(self) -> float:
        """The length of the whole bar."""
        return self.value.median + (self.beside.median if self.beside else 0)


def _colour(peer: str) -> str:
    if peer.startswith("aiorwlock-remote"):
        return OURS
    return FLOOR if peer in FLOORS or "floor" in peer or "bare" in peer else INK


def _lines(
    peers: Sequence[str], value: Callable[[str], Summary | None]
) -> Iterator[Line]:
    for peer in peers:
        found = value(peer)
        if found is not None:
            yield Line(peer, found, _colour(peer))


def _bars(axes: Axes, title: str, lines: Sequence[Line]) -> None:
    """Draw a horizontal bar for each line, with the spread of the repetitions.

    A bar that would make all others invisible is cut, and its number stands at its end.
    """
    if not lines:
        raise NotMeasured
    limit = CUT * statistics.median(line.length for line in lines)
    for row, line in enumerate(reversed(lines)):
        cut = line.length > limit
        value, end = line.value, min(line.length, limit)
        first = min(value.median, end)
        axes.barh(row, first, height=0.62, color=line.colour)
        if line.beside is not None:
            axes.barh(row, end - first, left=first, height=0.62, color=SERVER)
        elif not cut:
            span = [[value.median - value.least], [value.most - value.median]]
            axes.errorbar(end, row, xerr=span, color=INK, linewidth=1, capsize=2)
            end = max(end, value.most)
        axes.annotate(
            f"→ {_short(line.length)}" if cut else _short(line.length),
            (end, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(lines)), [line.label for line in reversed(lines)])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_title(title, loc="left")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.margins(x=0.16)


def _short(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _panels(
    count: int, height: float, *, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    flat = [axes for row in panels for axes in row]
    for axes in flat[count:]:
        axes.set_visible(False)
    return figure, flat[:count]


# ------------------------------------------------------------------------- the plots


def _cycle(data: Data) -> Figure:
    figures = data.figures("redis")
    figure, (axes,) = _panels(1, 3.0)
    lines = _lines(
        REDIS_PEERS["alone"],
        lambda peer: ratio(figures, "alone", CYCLE, peer, redis.FLOOR),
    )
    _bars(axes, "cycle of one task alone, of the floor's (less is better)", [*lines])
    return figure


def _throughput(data: Data) -> Figure:
    figures = data.figures("redis")
    figure, (axes,) = _panels(1, 2.8)
    lines = _lines(
        REDIS_PEERS["own-keys"],
        lambda peer: ratio(figures, "own-keys", CYCLES, peer, redis.FLOOR),
    )
    title = (
        "cycles a second of 100 tasks with 100 keys, of the floor's (more is better)"
    )
    _bars(axes, title, [*lines])
    return figure


def _one_key(data: Data) -> Figure:
    titles = {
        "one-key": "one process, 50 tasks, nothing to do inside",
        "one-held-key": "one process, 50 tasks, 2 ms inside",
        "one-key-processes": "four processes of 16 tasks, 2 ms inside",
    }
    return _scenarios(data, titles, CYCLES, "turns a second (more is better)")


def _scenarios(data: Data, titles: Mapping[str, str], kind: str, axis: str) -> Figure:
    """Return a panel of bars for each scenario on Redis; ``axis``: what they show."""
    figures = data.figures("redis")
    figure, panels = _panels(len(titles), 2.6)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        lines = _lines(
            REDIS_PEERS[name],
            lambda peer, name=name: summary(figures, name, kind, peer),  # type: ignore[misc]
        )
        _bars(axes, f"{title}: {axis}", [*lines])
    return figure


@dataclass(frozen=True)
class Pen:
    """How a curve looks."""

    colour: str
    width: float = 1.2
    dashes: str = "-"


def _pens(peers: Sequence[str]) -> dict[str, Pen]:
    """Return a pen for each peer: ours is thick, floors are dashed."""
    colours = iter(COLOURS)
    return {
        peer: Pen(OURS, 2.2)
        if peer == redis.OURS
        else Pen(FLOOR, dashes="--")
        if peer in FLOORS
        else Pen(next(colours))
        for peer in peers
    }


def _draw(
    axes: Axes, x: object, y: object, pen: Pen, label: str, **more: object
) -> None:
    axes.plot(
        *(x, y),
        color=pen.colour,
        linewidth=pen.width,
        linestyle=pen.dashes,
        label=label,
        **more,
    )


def _quantiles(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return shares from 0 to 1, and the value below which so many values are."""
    shares = [number / POINTS for number in range(POINTS + 1)]
    ordered = sorted(values)
    last = len(ordered) - 1
    return shares, [ordered[round(share * last)] for share in shares]


def _hand_over_curves(
    axes: Axes, peers: Mapping[str, Sequence[float]], pens: Mapping[str, Pen]
) -> None:
    """Draw the cumulative curve of each peer."""
    if not peers:
        raise NotMeasured
    for peer, values in peers.items():
        shares, milliseconds = _quantiles(values)
        _draw(axes, milliseconds, shares, pens[peer], peer)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlabel("milliseconds from the release to the grant")
    axes.set_ylabel("share of the hand-overs")
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _hand_over_values(
    data: Data, suite: str, peers: Sequence[str]
) -> dict[str, list[float]]:
    figures = data.figures(suite)
    found = {}
    for peer in peers:
        try:
            found[peer] = figures.values("hand-over", HAND_OVER, peer)
        except NotMeasured:
            continue
    return found


def _hand_over(data: Data) -> Figure:
    figure, (axes,) = _panels(1, 3.4)
    peers = REDIS_PEERS["hand-over"]
    _hand_over_curves(axes, _hand_over_values(data, "redis", peers), _pens(peers))
    return figure


_HAND_OVERS_OF_STORES = (
    ("sql", "#d8843b", (sql.OURS, sql.NOTIFY, sql.ADVISORY)),
    ("sql", "#2f9e6e", (sql.MARIADB_WOKEN, sql.MARIADB_OURS, sql.GET_LOCK)),
    ("sql", "#8f6fd1", (sql.MYSQL_OURS,)),
    ("sql", "#3aa5b5", (sql.SQLITE_OURS,)),
    ("files", "#b59b1c", (local.FILE_MUTEX, local.FILELOCK)),
    ("cassandra", "#c75d9b", (cassandra.WOKEN, cassandra.OURS, cassandra.NAIVE)),
    ("etcd", "#5a6fd8", (etcd.OURS, etcd.AETCD, etcd.KAZOO)),
)
"""Suite and colour of each store, and its peers: the first has a thick line."""


_OF_STORE = {
    ("cassandra", cassandra.OURS): ", Cassandra",
    ("cassandra", cassandra.NAIVE): ", Cassandra",
    ("etcd", etcd.OURS): ", etcd",
}
"""What the names of peers go on with that do not say which store they are on."""


def _hand_over_stores(data: Data) -> Figure:
    values: dict[str, list[float]] = {}
    pens: dict[str, Pen] = {}
    for suite, colour, peers in _HAND_OVERS_OF_STORES:
        found = _hand_over_values(data, suite, peers)
        for peer, dashes in zip(peers, ("-", "--", ":", "-."), strict=False):
            if peer in found:
                label = f"{peer}{_OF_STORE.get((suite, peer), '')}"
                values[label] = found[peer]
                pens[label] = Pen(colour, 2.2 if dashes == "-" else 1.2, dashes)
    figure, (axes,) = _panels(1, 4.0)
    _hand_over_curves(axes, values, pens)
    return figure


def _fairness(data: Data) -> Figure:
    figures = data.figures("redis")
    names = {
        "one-held-key": "one process, 50 tasks",
        "one-key-processes": "four processes of 16 tasks",
    }
    figure, panels = _panels(len(names), 3.0)
    for axes, (name, title) in zip(panels, names.items(), strict=True):
        for peer, pen in _pens(REDIS_PEERS[name]).items():
            try:
                turns = figures.values(name, TURNS, peer)
            except NotMeasured:
                continue
            shares, quantiles = _quantiles(turns)
            mean = statistics.mean(turns) or 1.0
            percents = [100 * share for share in shares]
            _draw(axes, percents, [each / mean for each in quantiles], pen, peer)
        _shown(axes)
        axes.set_ylim(0, 4)
        axes.set_title(f"{title}, 2 ms inside", loc="left")
        axes.set_xlabel("tasks, from the one with the fewest turns, %")
        axes.set_ylabel("turns, of the mean")
    return figure


def _shown(axes: Axes) -> None:
    """Add the legend; there has to be a curve."""
    if not axes.lines:
        raise NotMeasured
    _legend(axes)


def _requests(data: Data) -> Figure:
    titles = {
        "alone": "one task alone",
        "one-held-key": "50 tasks of one process, one key, 2 ms inside",
        "one-key-processes": "four processes of 16 tasks, one key, 2 ms inside",
    }
    axis = "requests a cycle (less is better)"
    return _scenarios(data, titles, REQUESTS_A_CYCLE, axis)


def _waiters(data: Data) -> Figure:
    figures = data.figures("redis")
    panels_of = {
        REQUESTS: "requests a second of all that wait",
        CPU_WHILE_WAITING: "CPU of the waiting process, % of a core",
    }
    figure, panels = _panels(len(panels_of), 2.8)
    for axes, (metric, title) in zip(panels, panels_of.items(), strict=True):
        for peer, pen in _pens(REDIS_PEERS["hand-over"]).items():
            found = {
                count: summary(figures, waiters_scenario(count), metric, peer)
                for count in NUMBERS_OF_WAITERS
            }
            points = {count: each.median for count, each in found.items() if each}
            if points:
                x, y = list(points), list(points.values())
                _draw(axes, x, y, pen, peer, marker="o", markersize=3)
        _shown(axes)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axes.set_title(title, loc="left")
        axes.set_xlabel("tasks that wait")
    return figure


def _client_and_server(
    figures: Figures, scenario: str, client: str, server: str, peers: Sequence[str]
) -> list[Line]:
    found = []
    for peer in peers:
        of_client = summary(figures, scenario, client, peer)
        of_server = summary(figures, scenario, server, peer)
        if of_client is not None and of_server is not None:
            found.append(Line(peer, of_client, _colour(peer), beside=of_server))
    return found


def _cpu(data: Data) -> Figure:
    figures = data.figures("redis")
    titles = {
        "own-keys": "100 tasks, 100 keys",
        "one-held-key": "50 tasks of one process, one key, 2 ms inside",
        "one-key-processes": "four processes of 16 tasks, one key, 2 ms inside",
    }
    figure, panels = _panels(len(titles), 2.6)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        lines = _client_and_server(
            figures, name, CLIENT_CPU, SERVER_CPU, REDIS_PEERS[name]
        )
        _bars(axes, f"{title}: µs of CPU a cycle, clients and server", lines)
    return figure


def _memory(data: Data) -> Figure:
    figures = data.figures("redis")
    most = waiters_scenario(NUMBERS_OF_WAITERS[-1])
    panels_of = (
        (most, MEMORY_OF_WAITER, SERVER_MEMORY_OF_WAITER, "a waiter"),
        (HELD_MEMORY, MEMORY_OF_HELD, SERVER_MEMORY_OF_HELD, "a held lock"),
    )
    figure, panels = _panels(len(panels_of), 2.6)
    for axes, (name, client, server, title) in zip(panels, panels_of, strict=True):
        peers = REDIS_PEERS["hand-over"]
        lines = _client_and_server(figures, name, client, server, peers)
        _bars(axes, f"kB of memory for {title}, client and server", lines)
    return figure


def _stores(data: Data) -> Figure:
    """Draw the cycle on each store, of the floor there."""
    of_sql, of_files = data.figures("sql"), data.figures("files")
    of_cassandra = data.figures("cassandra")
    floors = {
        sql.FLOOR: (sql.OURS, sql.ADVISORY, sql.DLOCK),
        sql.MARIADB_FLOOR: (sql.MARIADB_OURS, sql.GET_LOCK, sql.MARIADB_DLOCK),
        sql.MYSQL_FLOOR: (sql.MYSQL_OURS, sql.MYSQL_GET_LOCK),
        sql.SQLITE_FLOOR: (sql.SQLITE_OURS,),
    }
    rows: list[tuple[str, Summary | None]] = [
        (peer, ratio(of_sql, "alone", CYCLE, peer, floor))
        for floor, peers in floors.items()
        for peer in peers
    ]
    rows += [
        (peer, ratio(of_files, "alone", LOCAL_CYCLE, peer, floor))
        for peer, floor in (
            (local.FILE_MUTEX, local.FILE_SYNCED),
            (local.FILE_MUTEX_UNSYNCED, local.FILE_FLOOR),
            (local.FILELOCK, local.FILE_FLOOR),
        )
    ]
    of_floor = ratio(
        of_cassandra, "alone", CASSANDRA_CYCLE, cassandra.OURS, cassandra.FLOOR
    )
    rows.append((f"{cassandra.OURS}, Cassandra", of_floor))
    of_etcd = data.figures("etcd")
    rows += [
        (f"{peer}{suffix}", ratio(of_etcd, "alone", ETCD_CYCLE, peer, etcd.FLOOR))
        for peer, suffix in ((etcd.OURS, ", etcd"), (etcd.AETCD, ""), (etcd.KAZOO, ""))
    ]
    lines = [
        Line(peer, found, OURS if peer.startswith(("aiorwlock", "file://")) else INK)
        for peer, found in rows
        if found is not None
    ]
    figure, (axes,) = _panels(1, 4.2)
    _bars(axes, "cycle of one task alone, of the store's floor (less is better)", lines)
    return figure


PLOTS: dict[str, Callable[[Data], Figure]] = {
    "cycle": _cycle,
    "throughput": _throughput,
    "one-key": _one_key,
    "hand-over": _hand_over,
    "fairness": _fairness,
    "requests": _requests,
    "waiters": _waiters,
    "cpu": _cpu,
    "memory": _memory,
    "stores": _stores,
    "hand-over-stores": _hand_over_stores,
}
"""What draws each plot, by the name of its file."""
