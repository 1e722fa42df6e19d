"""The text of the page: the template, and sentences and tables made of the data alone.

No sentence names a winner by itself: who is better is found in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from benchmarks.cassandra import adapters as cassandra
from benchmarks.etcd import adapters as etcd
from benchmarks.etcd.scenarios import CYCLE as ETCD_CYCLE
from benchmarks.harness.measures import (
    CLIENT_CPU,
    CONNECTIONS,
    CPU_WHILE_WAITING,
    CYCLES,
    DRAIN,
    HAND_OVER,
    LONGEST_MS,
    MEMORY_OF_HELD,
    MEMORY_OF_WAITER,
    SERVED,
    SPREAD,
    TURNS,
)
from benchmarks.harness.report import Figures, NotMeasured, bar_table, percentile, short
from benchmarks.local import adapters as local
from benchmarks.page.data import Data, Summary, summary
from benchmarks.page.suites import (
    HELD_MEMORY,
    NUMBERS_OF_WAITERS,
    REDIS_LOCKS,
    REDIS_PEERS,
    judged,
    scenario_names,
    waiters_scenario,
)
from benchmarks.redis import adapters as redis
from benchmarks.redis.scenarios import (
    CYCLE,
    DRAIN_TIMEOUT,
    LATE,
    REQUESTS,
    REQUESTS_A_CYCLE,
    WRITER_P99,
)
from benchmarks.sql import adapters as sql

ALIKE = 0.03
"""Figures that differ by less are called alike: another run might turn them round."""
TEMPLATE = Path(__file__).with_name("template.md")
SHORT_RUN = """:::{warning}
These are the figures of a **short run**, or of a machine with other work on it. They
show what is measured, and allow no conclusions.
:::"""

LESS = {
    redis.BLPOP: "is no lock: it has no lease, so a holder that dies keeps it for ever",
    redis.FLOOR: "is no lock: nobody can wait for it",
    redis.REDIS_PY: "has no queue, no fence and no renewal",
    redis.COREDIS: "has no queue, no fence and no renewal",
    redis.POTTERY: "has no queue, no fence and no renewal of its own",
    redis.PYTHON_REDIS_LOCK: (
        "has no fence, and needs a thread and a connection for each waiter"
    ),
    redis.REDISHILOK: (
        "has no queue and no fence, and releases what is another's after its lease"
    ),
    redis.RUEIDIS: "is compiled, and has no queue between processes and no fence",
    redis.REDISSON: "runs on a virtual machine with a compiler, and has no queue",
    redis.MEMORY: "is our lock without a server",
    sql.NOTIFY: "is no lock: it has no lease and no queue",
    sql.ADVISORY: (
        "writes nothing and has no lease and no fence; a waiter keeps a connection"
    ),
    sql.DLOCK: "is that lock through SQLAlchemy",
    sql.GET_LOCK: (
        "writes nothing and has no lease and no fence; a waiter keeps a connection"
    ),
    sql.MARIADB_DLOCK: "is that lock through SQLAlchemy",
    sql.MYSQL_GET_LOCK: "is the same lock on MySQL",
    sql.SQLITE_FLOOR: "is no lock: it has no lease and no queue",
    local.FILE_FLOOR: "is no lock: a holder that dies keeps it, and waiters poll",
    local.FILELOCK: "has no lease, no fence and no queue, and polls every 50 ms",
}
"""What a peer does less than we do: said wherever its figure is the better one."""


def render(data: Data) -> str:
    """Return the page in Markdown."""
    redis_figures = data.figures("redis")
    sections = {name: _section(name, redis_figures) for name in _SECTIONS}
    sections |= {name: make(data) for name, make in _OF_ALL.items()}
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    text = template.substitute(sections)
    # A section without text leaves blank lines behind.
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


# ------------------------------------------------------------------------ comparisons


@dataclass(frozen=True)
class Compared:
    """All peers of a scenario by one figure, ours among them.

    Attributes:
        ours: Our name.
        less_is_better: Whether the smaller figure is the better one.
        unit: Written behind each figure.
    """

    found: dict[str, float]
    ours: str
    less_is_better: bool = True
    unit: str = ""

    @property
    def our_figure(self) -> float | None:
        """Our figure; None if it was not measured."""
        return self.found.get(self.ours)

    def without(self, peers: Sequence[str]) -> Compared:
        """Return the comparison without some peers."""
        rest = {peer: each for peer, each in self.found.items() if peer not in peers}
        return replace(self, found=rest)

    def others(self) -> dict[str, float]:
        """Return the figures of all peers but ours, the best first."""
        sign = 1 if self.less_is_better else -1
        ordered = sorted(self.found.items(), key=lambda item: sign * item[1])
        return {peer: value for peer, value in ordered if peer != self.ours}

    def better(self) -> dict[str, float]:
        """Return the peers with a better figure than ours, the best first."""
        others = self.others().items()
        return {peer: value for peer, value in others if self._beats(value) > 0}

    def worse(self) -> dict[str, float]:
        """Return the peers with a worse figure than ours, the nearest first."""
        others = self.others().items()
        return {peer: value for peer, value in others if self._beats(value) < 0}

    def _beats(self, theirs: float) -> float:
        """Return how far a figure is on the better side of ours; 0: alike."""
        ours = self.our_figure
        if ours is None or abs(theirs - ours) <= ALIKE * max(abs(ours), abs(theirs)):
            return 0.0
        return ours - theirs if self.less_is_better else theirs - ours

    def sentences(self) -> str:
        """Return who is better, and what they do less, and who is worse."""
        if self.our_figure is None:
            return "This run has no figure of ours."
        better, worse = self.better(), self.worse()
        alike = {
            peer: value
            for peer, value in self.others().items()
            if peer not in better and peer not in worse
        }
        groups = {"Better": better, "Alike": alike, "Worse": worse}
        lines = [f"Ours: {self.with_unit(self.our_figure)}."]
        if not better:
            lines.append("No peer is better here.")
        for name, found in groups.items():
            if found:
                shown = ", ".join(self._named(*item) for item in found.items())
                lines.append(f"{name}: {shown}.")
        what = [f"{peer} {LESS[peer]}" for peer in better if peer in LESS]
        if what:
            lines.append(f"What the better ones do less: {'; '.join(what)}.")
        return " ".join(lines)

    def _named(self, peer: str, value: float) -> str:
        return f"{peer} ({self.with_unit(value)})"

    def with_unit(self, value: float) -> str:
        """Return a figure with the unit behind."""
        return f"{short(value)} {self.unit}".rstrip()


def _medians(
    figures: Figures, scenario: str, metric: str, peers: Sequence[str]
) -> dict[str, float]:
    found = {peer: summary(figures, scenario, metric, peer) for peer in peers}
    return {peer: value.median for peer, value in found.items() if value is not None}


@dataclass(frozen=True)
class Shown:
    """A figure on Redis that the text compares.

    Attributes:
        what: Begins the sentences on the figure; empty if the section says it.
        unit: Written behind each figure.
        peers: Who is compared; by default all of the scenario.
        less_is_better: As in ``Compared``.
        per_cent: The percentile of all values; None: the median of the repetitions.
        brief: What the figure is called in the summary; empty: it is not in there.
    """

    what: str
    scenario: str
    metric: str
    unit: str = ""
    peers: tuple[str, ...] = ()
    less_is_better: bool = True
    per_cent: int | None = None
    brief: str = ""

    def compared(self, figures: Figures) -> Compared:
        """Return the figures of all peers."""
        peers = self.peers or REDIS_PEERS[self.scenario]
        if self.per_cent is None:
            found = _medians(figures, self.scenario, self.metric, peers)
        else:
            found = _percentiles(
                figures, self.scenario, self.metric, peers, self.per_cent
            )
        return Compared(found, redis.OURS, self.less_is_better, self.unit)

    def sentences(self, figures: Figures) -> str:
        """Return the sentences of ``Compared``; with a name they are a list's item."""
        said = self.compared(figures).sentences()
        return f"* {self.what}. {said}" if self.what else said


def _percentiles(
    figures: Figures, scenario: str, metric: str, peers: Sequence[str], per_cent: int
) -> dict[str, float]:
    found = {}
    for peer in peers:
        try:
            values = figures.values(scenario, metric, peer)
        except NotMeasured:
            continue
        found[peer] = percentile(values, per_cent)
    return found


# ------------------------------------------------------------------ the parts on Redis

_MOST_WAITERS = waiters_scenario(NUMBERS_OF_WAITERS[-1])
_WAITING = (redis.BLPOP, *REDIS_LOCKS)
_FLOORS = (redis.FLOOR, redis.BLPOP, redis.MEMORY)


def _turns(what: str, scenario: str, brief: str) -> Shown:
    return Shown(what, scenario, CYCLES, "turns/s", less_is_better=False, brief=brief)


_SECTIONS: dict[str, tuple[Shown, ...]] = {
    "cycle": (Shown("", "alone", CYCLE, "µs", brief="a cycle of one task alone"),),
    "own_keys": (
        Shown(
            *("", "own-keys", CYCLES, "cycles/s"),
            less_is_better=False,
            brief="100 tasks with 100 keys",
        ),
    ),
    "one_key": (
        _turns(
            *("50 tasks of one process, nothing to do inside", "one-key"),
            "50 tasks of a process at one key",
        ),
        _turns("50 tasks of one process, 2 ms inside", "one-held-key", "… 2 ms inside"),
        _turns(
            *("Four processes of 16 tasks, 2 ms inside", "one-key-processes"),
            "64 tasks of four processes, 2 ms inside",
        ),
    ),
    "hand_over": (
        Shown(
            "Half of the hand-overs, at most",
            *("hand-over", HAND_OVER, "ms"),
            per_cent=50,
            brief="hand-over between processes, p50",
        ),
        Shown(
            "95 of 100 hand-overs, at most",
            *("hand-over", HAND_OVER, "ms"),
            per_cent=95,
            brief="… p95",
        ),
    ),
    "fairness": (
        Shown(
            "The task furthest from the mean, one process", "one-held-key", SPREAD, "%"
        ),
        Shown("The longest wait, one process", "one-held-key", LONGEST_MS, "ms"),
        Shown(
            "The task furthest from the mean, four processes",
            *("one-key-processes", SPREAD, "%"),
            brief="four processes: the task furthest from the mean",
        ),
        Shown(
            "The longest wait, four processes",
            *("one-key-processes", LONGEST_MS, "ms"),
            brief="… the longest wait",
        ),
    ),
    "requests": (
        Shown("One task alone", "alone", REQUESTS_A_CYCLE),
        Shown(
            "Many tasks of one process",
            *("one-held-key", REQUESTS_A_CYCLE),
            brief="requests a cycle, 50 tasks of a process",
        ),
        Shown(
            "Four processes",
            *("one-key-processes", REQUESTS_A_CYCLE),
            brief="… four processes",
        ),
    ),
    "waiters": (
        Shown(
            "Requests a second of 1,000 waiters",
            *(_MOST_WAITERS, REQUESTS, "", _WAITING),
            brief="requests a second of 1,000 waiters",
        ),
        Shown("Connections", _MOST_WAITERS, CONNECTIONS, "", _WAITING),
        Shown(
            "CPU while they wait",
            *(_MOST_WAITERS, CPU_WHILE_WAITING, "% of a core", _WAITING),
        ),
        Shown(
            f"How many of 1,000 get in within {DRAIN_TIMEOUT:.0f} s of the release",
            *(_MOST_WAITERS, SERVED, "", _WAITING),
            less_is_better=False,
            brief=f"… of whom so many get in within {DRAIN_TIMEOUT:.0f} s",
        ),
        Shown("Until the last of those is in", _MOST_WAITERS, DRAIN, "s", _WAITING),
    ),
    "cpu": (
        Shown(
            "The clients' part, with keys of their own",
            *("own-keys", CLIENT_CPU, "µs"),
            brief="CPU of the client a cycle, 100 tasks with 100 keys",
        ),
        Shown(
            "The clients' part, four processes at one key",
            *("one-key-processes", CLIENT_CPU, "µs"),
        ),
    ),
    "memory": (
        Shown(
            "A waiter, in the client",
            *(_MOST_WAITERS, MEMORY_OF_WAITER, "kB", REDIS_LOCKS),
            brief="memory of a waiter, in the client",
        ),
        Shown(
            "A held lock, in the client",
            *(HELD_MEMORY, MEMORY_OF_HELD, "kB", REDIS_LOCKS),
            brief="memory of a held lock, in the client",
        ),
    ),
    "readers_and_writers": (
        _turns("Each task reads nine times of ten: turns", "mixed-tasks", ""),
        Shown(
            "… the wait of 99 of 100 writers, at most", "mixed-tasks", WRITER_P99, "ms"
        ),
        _turns(
            "45 tasks read and 5 write: turns", "fixed-roles", "45 readers, 5 writers"
        ),
        Shown(
            "… the wait of 99 of 100 writers, at most",
            *("fixed-roles", WRITER_P99, "ms"),
            brief="… the wait of 99 of 100 writers, at most",
        ),
    ),
    "killed": (
        Shown(
            "90 of 100 waiters, at most",
            *("killed-holders", LATE, "ms", REDIS_LOCKS),
            per_cent=90,
            brief="after a killed holder's lease, p90",
        ),
    ),
}


def _section(name: str, figures: Figures) -> str:
    lines = [shown.sentences(figures) for shown in _SECTIONS[name]]
    if name == "fairness":
        lines += _starved(figures)
    return "\n".join(lines)


def _starved(figures: Figures) -> Iterator[str]:
    """Yield which peers left some tasks without any turn."""
    for scenario, where in (
        ("one-held-key", "one process"),
        ("one-key-processes", "four processes"),
    ):
        found = []
        for peer in REDIS_PEERS[scenario]:
            try:
                turns = figures.values(scenario, TURNS, peer)
            except NotMeasured:
                continue
            share = 100 * sum(turn == 0 for turn in turns) / len(turns)
            if share:
                found.append(f"{peer} ({short(share)} %)")
        who = ", ".join(found) or "of no peer"
        yield f"* Tasks that did not get in at all, {where}: {who}."


def _in_short(data: Data) -> str:
    """Return a table of chosen figures: ours, the best other lock, the better ones."""
    figures = data.figures("redis")
    lines = [
        "| | ours | the best other lock | locks that are better |",
        "| --- | ---: | ---: | --- |",
    ]
    for shown in (each for section in _SECTIONS.values() for each in section):
        compared = shown.compared(figures).without(_FLOORS)
        if shown.brief and compared.our_figure is not None:
            best = next(iter(compared.others().items()), None)
            better = ", ".join(compared.better()) or "none"
            ours = compared.with_unit(compared.our_figure)
            other = f"{compared.with_unit(best[1])} ({best[0]})" if best else ""
            lines.append(f"| {shown.brief} | {ours} | {other} | {better} |")
    return "\n".join(lines)


# ------------------------------------------------------------- the parts of all stores


def _warning(data: Data) -> str:
    return SHORT_RUN if data.short else ""


def _surroundings(data: Data) -> str:
    about = data.about
    versions = ", ".join(f"{name} {each}" for name, each in about["versions"].items())
    rows = {
        "date": about["date"],
        "commit": about["commit"],
        "command": f"`{about['command']}`",
        "repetitions": data.repetitions,
        "machine": f"{about['cores']} cores, {about['processor']}, {about['system']}",
        "load before the run": ", ".join(str(load) for load in about["load"]),
        "other programs' share of the machine": _share(about.get("busy")),
        "a sync of 4 kB to its disk": f"{about['fsync_us']} µs",
        "Python": about["python"],
        "versions": versions,
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value != ""]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _share(busy: float | None) -> str:
    return "" if busy is None else f"{short(100 * busy)} %"


def _goals(data: Data) -> str:
    if data.short:
        return "A short run is not judged."
    found = judged(data)
    everything = [verdict for verdicts in found.values() for verdict in verdicts]
    held = sum(verdict.holds is True for verdict in everything)
    missed = sum(verdict.holds is False for verdict in everything)
    left = len(everything) - held - missed
    sentence = (
        f"Of {len(everything)} goals {held} are reached and {missed} are missed;"
        f" {left} were not measured."
    )
    parts = [sentence]
    for suite, verdicts in found.items():
        measured = [verdict for verdict in verdicts if verdict.holds is not None]
        if measured:
            parts += [f"**{suite}**", bar_table(measured, scenario_names()[suite])]
    silent = [
        f"* {suite}, {verdict.bar.scenario}: {verdict.bar.what}"
        for suite, verdicts in found.items()
        for verdict in verdicts
        if verdict.holds is None
    ]
    if silent:
        parts += ["Not measured in this run:", "\n".join(silent)]
    return "\n\n".join(parts)


def _stores(data: Data) -> str:
    lines = []
    for store, suite, cycle, peers in (
        ("PostgreSQL", "sql", CYCLE, (sql.OURS, sql.ADVISORY, sql.DLOCK)),
        ("MariaDB", "sql", CYCLE, (sql.MARIADB_OURS, sql.GET_LOCK, sql.MARIADB_DLOCK)),
        ("MySQL", "sql", CYCLE, (sql.MYSQL_OURS, sql.MYSQL_GET_LOCK)),
        ("etcd", "etcd", ETCD_CYCLE, (etcd.OURS, etcd.AETCD, etcd.KAZOO)),
    ):
        found = _medians(data.figures(suite), "alone", cycle, peers)
        unit = "ms" if suite == "etcd" else "µs"
        lines.append(f"* {store}. {Compared(found, peers[0], unit=unit).sentences()}")
    return "\n".join(lines)


def _hand_over_stores(data: Data) -> str:
    lines = []
    for store, suite, peers in (
        ("PostgreSQL", "sql", (sql.OURS, sql.NOTIFY, sql.ADVISORY)),
        ("MariaDB", "sql", (sql.MARIADB_OURS, sql.MARIADB_WOKEN, sql.GET_LOCK)),
        ("MySQL", "sql", (sql.MYSQL_OURS,)),
        ("SQLite", "sql", (sql.SQLITE_OURS, sql.SQLITE_FLOOR)),
        ("Cassandra", "cassandra", (cassandra.OURS, cassandra.WOKEN, cassandra.NAIVE)),
        ("etcd", "etcd", (etcd.OURS, etcd.MESSAGE, etcd.AETCD, etcd.KAZOO)),
        ("Files", "files", (local.FILE_MUTEX, local.FILE_FLOOR, local.FILELOCK)),
    ):
        figures = data.figures(suite)
        found = _percentiles(figures, "hand-over", HAND_OVER, peers, 50)
        compared = Compared(found, peers[0], unit="ms")
        lines.append(f"* {store}. {compared.sentences()}")
    return "\n".join(lines)


def _left_out(data: Data) -> str:
    lines = [f"* {note}" for note in data.notes]
    for each in data.failed:
        times = "once" if each.times == 1 else f"{each.times} times"
        where = f"{each.peer}, `{each.scenario}` ({each.suite})"
        lines.append(f"* {where}, {times}: {each.reason}.")
    if not lines:
        return ""
    head = (
        "What could not be measured, or broke, in this run. The figures are without it."
    )
    return "\n\n".join(["## Left out", head, "\n".join(lines)])


def _all_figures(data: Data) -> str:
    parts = []
    for suite, scenarios in scenario_names().items():
        figures = data.figures(suite)
        for name in scenarios:
            table = list(_table(data, suite, name, figures))
            if table:
                parts += [f"**{suite}: `{name}`**", "\n".join(table)]
    return "\n\n".join(parts)


def _table(data: Data, suite: str, name: str, figures: Figures) -> Iterator[str]:
    """Yield a line for each peer of a scenario, under the names of its figures."""
    peers = data.values.get(suite, {}).get(name, {})
    metrics = dict.fromkeys(metric for found in peers.values() for metric in found)
    # The turns of each task have a plot, and a median that says nothing.
    metrics.pop(TURNS, None)
    if not metrics:
        return
    yield "| | " + " | ".join(metrics) + " |"
    yield "| --- |" + " ---: |" * len(metrics)
    for peer in peers:
        cells = [_cell(summary(figures, name, metric, peer)) for metric in metrics]
        yield f"| {peer} | " + " | ".join(cells) + " |"


def _cell(value: Summary | None) -> str:
    if value is None:
        return ""
    shown = short(value.median)
    if value.least != value.most:
        shown += f" ({short(value.least)} … {short(value.most)})"
    return shown


_OF_ALL: dict[str, Callable[[Data], str]] = {
    "warning": _warning,
    "surroundings": _surroundings,
    "in_short": _in_short,
    "goals": _goals,
    "stores": _stores,
    "hand_over_stores": _hand_over_stores,
    "left_out": _left_out,
    "all_figures": _all_figures,
}
