"""The text of the page: the template, and sentences and tables made of the data alone.

No sentence names a winner by itself: who is better is found in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from benchmarks.cassandra import adapters as cassandra
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
from benchmarks.page.bars import judged
from benchmarks.page.data import Data, Summary, summary
from benchmarks.page.suites import (
    HELD_MEMORY,
    NUMBERS_OF_WAITERS,
    REDIS_LOCKS,
    REDIS_PEERS,
    scenario_names,
    waiters_scenario,
)
from benchmarks.redis import adapters as redis
from benchmarks.redis.scenarios import (
    CYCLE,
    LATE,
    REQUESTS,
    REQUESTS_A_CYCLE,
    WRITER_P99,
)
from benchmarks.sql import adapters as sql

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
    sections = {name: make(redis_figures) for name, make in _ON_REDIS.items()}
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

    def better(self) -> dict[str, float]:
        """Return the peers with a better figure than ours, the best first."""
        return self._those(lambda theirs, ours: theirs < ours)

    def worse(self) -> dict[str, float]:
        """Return the peers with a worse figure than ours, the nearest first."""
        return self._those(lambda theirs, ours: theirs > ours)

    def _those(self, wanted: Callable[[float, float], bool]) -> dict[str, float]:
        sign, ours = (1 if self.less_is_better else -1), self.our_figure
        if ours is None:
            return {}
        ordered = sorted(self.found.items(), key=lambda item: sign * item[1])
        return {
            peer: value
            for peer, value in ordered
            if peer != self.ours and wanted(sign * value, sign * ours)
        }

    def sentences(self) -> str:
        """Return who is better, and what they do less, and who is worse."""
        if self.our_figure is None:
            return "This run has no figure of ours."
        better, worse = self.better(), self.worse()
        lines = [f"Ours: {self._with_unit(self.our_figure)}."]
        if better:
            shown = ", ".join(self._named(*item) for item in better.items())
            lines.append(f"Better: {shown}.")
        else:
            lines.append("No peer is better here.")
        if worse:
            shown = ", ".join(self._named(*item) for item in worse.items())
            lines.append(f"Worse: {shown}.")
        what = [f"{peer} {LESS[peer]}" for peer in better if peer in LESS]
        if what:
            lines.append(f"What the better ones do less: {'; '.join(what)}.")
        return " ".join(lines)

    def _named(self, peer: str, value: float) -> str:
        return f"{peer} ({self._with_unit(value)})"

    def _with_unit(self, value: float) -> str:
        return f"{short(value)} {self.unit}".rstrip()


def _medians(
    figures: Figures, scenario: str, metric: str, peers: Sequence[str]
) -> dict[str, float]:
    found = {peer: summary(figures, scenario, metric, peer) for peer in peers}
    return {peer: value.median for peer, value in found.items() if value is not None}


def _on_redis(
    scenario: str,
    metric: str,
    unit: str = "",
    *,
    peers: Sequence[str] = (),
    less_is_better: bool = True,
) -> Callable[[Figures], str]:
    """Return what makes the sentences on one figure of a scenario on Redis.

    Args:
        scenario: Of the suite on Redis.
        metric: Of the scenario.
        unit: Written behind each figure.
        peers: Who is compared; by default all of the scenario.
        less_is_better: As in ``Compared``.
    """

    def sentences(figures: Figures) -> str:
        found = _medians(figures, scenario, metric, peers or REDIS_PEERS[scenario])
        return Compared(found, redis.OURS, less_is_better, unit).sentences()

    return sentences


def _bullets(parts: Mapping[str, Callable[[Figures], str]]) -> Callable[[Figures], str]:
    """Return what makes a list with an item for each part, after its introduction."""

    def text(figures: Figures) -> str:
        return "\n".join(f"* {intro}. {make(figures)}" for intro, make in parts.items())

    return text


def _percentile(
    scenario: str, metric: str, peers: Sequence[str], per_cent: int
) -> Callable[[Figures], str]:
    """Return what makes the sentences on a percentile, in milliseconds, on Redis."""

    def sentences(figures: Figures) -> str:
        found = _percentiles(figures, scenario, metric, peers, per_cent)
        return Compared(found, redis.OURS, unit="ms").sentences()

    return sentences


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


def _starved(scenario: str) -> Callable[[Figures], str]:
    """Return what names the peers of which some tasks had no turn at all."""

    def sentence(figures: Figures) -> str:
        found = []
        for peer in REDIS_PEERS[scenario]:
            try:
                turns = figures.values(scenario, TURNS, peer)
            except NotMeasured:
                continue
            share = 100 * sum(turn == 0 for turn in turns) / len(turns)
            if share:
                found.append(f"{peer} ({short(share)} %)")
        return f"{', '.join(found)}." if found else "None."

    return sentence


# ------------------------------------------------------------------ the parts on Redis

_MOST_WAITERS = waiters_scenario(NUMBERS_OF_WAITERS[-1])
_WAITING = (redis.BLPOP, *REDIS_LOCKS)

_ON_REDIS: dict[str, Callable[[Figures], str]] = {
    "cycle": _on_redis("alone", CYCLE, "µs"),
    "own_keys": _on_redis("own-keys", CYCLES, "cycles/s", less_is_better=False),
    "one_key": _bullets(
        {
            what: _on_redis(name, CYCLES, "turns/s", less_is_better=False)
            for name, what in (
                ("one-key", "50 tasks of one process, nothing to do inside"),
                ("one-held-key", "50 tasks of one process, 2 ms inside"),
                ("one-key-processes", "Four processes of 16 tasks, 2 ms inside"),
            )
        }
    ),
    "hand_over": _bullets(
        {
            what: _percentile("hand-over", HAND_OVER, REDIS_PEERS["hand-over"], share)
            for share, what in (
                (50, "Half of the hand-overs take no longer than"),
                (95, "95 of 100 take no longer than"),
            )
        }
    ),
    "fairness": _bullets(
        {
            f"{what}, {where}": make
            for name, where in (
                ("one-held-key", "one process"),
                ("one-key-processes", "four processes"),
            )
            for what, make in (
                ("The task furthest from the mean", _on_redis(name, SPREAD, "%")),
                ("The longest wait", _on_redis(name, LONGEST_MS, "ms")),
                ("Tasks that never got in", _starved(name)),
            )
        }
    ),
    "requests": _bullets(
        {
            what: _on_redis(name, REQUESTS_A_CYCLE)
            for name, what in (
                ("alone", "One task alone"),
                ("one-held-key", "Many tasks of one process"),
                ("one-key-processes", "Four processes"),
            )
        }
    ),
    "waiters": _bullets(
        {
            what: _on_redis(
                _MOST_WAITERS,
                metric,
                unit,
                peers=_WAITING,
                less_is_better=metric != SERVED,
            )
            for what, metric, unit in (
                ("Requests a second of 1,000 waiters", REQUESTS, ""),
                ("Connections", CONNECTIONS, ""),
                ("CPU while they wait", CPU_WHILE_WAITING, "% of a core"),
                ("How many of 1,000 get in within 10 s of the release", SERVED, ""),
                ("Until the last of those is in", DRAIN, "s"),
            )
        }
    ),
    "cpu": _bullets(
        {
            what: _on_redis(name, CLIENT_CPU, "µs")
            for name, what in (
                ("own-keys", "The clients' part, with keys of their own"),
                ("one-key-processes", "The clients' part, four processes at one key"),
            )
        }
    ),
    "memory": _bullets(
        {
            what: _on_redis(name, metric, "kB", peers=REDIS_LOCKS)
            for what, name, metric in (
                ("A waiter, in the client", _MOST_WAITERS, MEMORY_OF_WAITER),
                ("A held lock, in the client", HELD_MEMORY, MEMORY_OF_HELD),
            )
        }
    ),
    "readers_and_writers": _bullets(
        {
            f"{where}, {what}": make
            for name, where in (
                ("mixed-tasks", "Each task reads nine times of ten"),
                ("fixed-roles", "45 tasks read and 5 write"),
            )
            for what, make in (
                ("turns", _on_redis(name, CYCLES, "turns/s", less_is_better=False)),
                ("wait of 99 of 100 writers", _on_redis(name, WRITER_P99, "ms")),
            )
        }
    ),
    "killed": _bullets(
        {"90 of 100": _percentile("killed-holders", LATE, REDIS_LOCKS, 90)}
    ),
}

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
        "a sync of 4 kB to its disk": f"{about['fsync_us']} µs",
        "Python": about["python"],
        "versions": versions,
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _goals(data: Data) -> str:
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
        parts += [f"**{suite}**", bar_table(verdicts, scenario_names()[suite])]
    return "\n\n".join(parts)


def _stores(data: Data) -> str:
    figures = data.figures("sql")
    lines = []
    for store, peers in (
        ("PostgreSQL", (sql.OURS, sql.ADVISORY, sql.DLOCK)),
        ("MariaDB", (sql.MARIADB_OURS, sql.GET_LOCK, sql.MARIADB_DLOCK)),
        ("MySQL", (sql.MYSQL_OURS, sql.MYSQL_GET_LOCK)),
    ):
        found = _medians(figures, "alone", CYCLE, peers)
        compared = Compared(found, peers[0], unit="µs")
        lines.append(f"* {store}. {compared.sentences()}")
    return "\n".join(lines)


def _hand_over_stores(data: Data) -> str:
    lines = []
    for store, suite, peers in (
        ("PostgreSQL", "sql", (sql.OURS, sql.NOTIFY, sql.ADVISORY, sql.DLOCK)),
        ("MariaDB", "sql", (sql.MARIADB_OURS, sql.GET_LOCK)),
        ("MySQL", "sql", (sql.MYSQL_OURS, sql.MYSQL_GET_LOCK)),
        ("SQLite", "sql", (sql.SQLITE_OURS, sql.SQLITE_FLOOR)),
        ("Cassandra", "cassandra", (cassandra.OURS, cassandra.NAIVE)),
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
    "goals": _goals,
    "stores": _stores,
    "hand_over_stores": _hand_over_stores,
    "left_out": _left_out,
    "all_figures": _all_figures,
}
