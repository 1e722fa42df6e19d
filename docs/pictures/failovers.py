"""Draw what failovers cost, and write the table: `python -m docs.pictures.failovers`.

The figures are those of docs/evidence/failovers, which `python -m tests.failovers`
measures; the table stands in docs/howto/failover.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

from docs.pictures.svg import FOLDER, Picture
from docs.pictures.tables import row, with_table

EVIDENCE = FOLDER.parent / "evidence" / "failovers"
PAGE = FOLDER.parent / "howto" / "failover.md"
STORES = {
    "redis": (
        "Redis alone, no persistence",
        "`appendonly yes`, `appendfsync always`",
    ),
    "redis-aof": (
        "Redis alone, appendfsync always",
        "a disk that outlives the server",
    ),
    "redis-sentinel": (
        "Redis, Sentinel",
        "[`min_replicas`](../stores/redis.md#replicas)",
    ),
    "redis-sentinel-min-replicas": (
        "Redis, Sentinel, one replica of two waits",
        "`min_replicas=2`, if a planned failover shall forget nothing",
    ),
    "redis-sentinel-all-replicas": (
        "Redis, Sentinel, min_replicas=2 of two",
        "whatever starts a killed server again",
    ),
    "redis-cluster": (
        "Redis Cluster",
        "[`min_replicas=1`](../stores/redis.md#replicas)",
    ),
    "redis-cluster-min-replicas": (
        "Redis Cluster, min_replicas=1",
        "a second replica for each primary: else nobody gets in while one is away",
    ),
    "postgresql": (
        "PostgreSQL, asynchronous standby",
        "`synchronous_standby_names`",
    ),
    "postgresql-synchronous": (
        "PostgreSQL, synchronous standby",
        "promote a synchronous standby only (Patroni: `synchronous_mode`)",
    ),
    "mariadb": (
        "MariaDB, asynchronous replica",
        "`rpl_semi_sync_master_enabled`, `rpl_semi_sync_slave_enabled`",
    ),
    "mariadb-semi-synchronous": (
        "MariaDB, semi-synchronous replica",
        "a `rpl_semi_sync_master_timeout` that never passes: the server goes on alone",
    ),
    "mysql-group": (
        "MySQL, group replication",
        "`group_replication_member_expel_timeout=0`: the default adds 5 s",
    ),
    "etcd": ("etcd, three members", "nothing"),
    "cassandra": (
        "Cassandra, three nodes",
        "replication factor 3",
    ),
}
"""Of each topology, its name in the picture, and what to set."""
LEFT, SECOND, STEP, TOP = 10, 25, 70, 84
"""Left edge, width of a second, height of a topology, where the first begins."""
WAYS = ("planned", "killed", "behind")


def measured() -> dict[str, dict[str, Any]]:
    """Return the figures of each topology, in the order of the page."""
    return {
        name: json.loads(path.read_text("utf-8"))
        for name in STORES
        if (path := EVIDENCE / f"{name}.json").exists()
    }


def values(run: dict[str, Any], field: str, ways: Iterable[str] = WAYS) -> list[Any]:
    """Return one figure of each failover of these ways."""
    return [cost[field] for way in ways for cost in run["ways"].get(way, ())]


def picture(runs: dict[str, dict[str, Any]]) -> Picture:
    """Draw for each topology how long nobody got in, and whether grants were lost."""
    drawn = Picture(
        "What a failover costs: how long nobody gets in, and what is forgotten",
        TOP + STEP * len(runs) + 8,
    )
    drawn.words(LEFT, 20, "How long nobody gets in, and what is forgotten", bold=True)
    drawn.box(LEFT, 30, 22, 10, "page", border="blue", radius=1)
    drawn.words(LEFT + 30, 40, "planned, the worst", "dim")
    drawn.box(LEFT + 170, 30, 22, 10, "blue", radius=1)
    drawn.words(LEFT + 200, 40, "leader killed, the worst", "dim")
    drawn.words(
        LEFT, 60, "✗ counts failovers, also those before which the leader's", "dim"
    )
    drawn.words(LEFT, 75, "changes did not reach its replicas for a second.", "dim")
    for number, (name, run) in enumerate(runs.items()):
        y = TOP + number * STEP
        drawn.line((LEFT, y), (430, y), width=0.5)
        drawn.words(LEFT, y + 17, STORES[name][0], bold=True)
        for place, (way, box) in enumerate((("planned", "page"), ("killed", "blue"))):
            seconds = max(values(run, "nobody", [way]))
            width = max(2.0, round(seconds * SECOND, 1))
            at = y + 24 + 15 * place
            drawn.box(LEFT, at, width, 8, box, border="blue", radius=1)
            drawn.words(LEFT + width + 6, at + 9, f"{seconds:.1f} s")
        forgotten, both = values(run, "forgotten"), max(values(run, "both"))
        words, color = "✓ no grant forgotten", "green"
        if any(forgotten):
            times = sum(map(bool, forgotten))
            words = f"✗ forgot grants in {times} of {len(forgotten)} failovers"
            words += f", two held for {both:.2f} s" if both else ""
            color = "red"
        drawn.words(LEFT, y + 63, words, color)
    return drawn


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return the rows of the page's table."""
    head = (
        "store and setting",
        "replaced by",
        "grants forgotten (in failovers): planned, killed, behind",
        "two believe, at most",
        "nobody gets in: planned, p50 (worst)",
        "killed, p50 (worst)",
        "set this",
    )
    lines = [row(head), row("---" for _ in head)]
    for name, run in runs.items():
        counts = [values(run, "forgotten", [way]) for way in WAYS]
        lines.append(
            row(
                (
                    run["setting"],
                    run["promoted by"],
                    ", ".join(
                        f"{sum(each)} ({len(each)})" if each else "none"
                        for each in counts
                    ),
                    _two(run),
                    _spread(values(run, "nobody", ["planned"])),
                    _spread(values(run, "nobody", ["killed"])),
                    STORES[name][1],
                )
            )
        )
    return "\n".join(lines) + "\n"


def _two(run: dict[str, Any]) -> str:
    both = max(values(run, "both"))
    return f"{both:.2f} s" if both else "not seen"


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({max(seconds):.2f} s)"


def main() -> None:
    """Draw the picture, and write the table into its page."""
    runs = measured()
    picture(runs).write("failovers.svg")
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), table(runs)), "utf-8")


if __name__ == "__main__":
    main()
