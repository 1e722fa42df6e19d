"""``python -m benchmarks.redis``: measure all scenarios, tell which bars hold.

Each repetition goes once through all peers of a scenario, in an order of its own, so
that a slow minute of the machine hits all of them. Bars compare within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.redis import golang
from benchmarks.redis.adapters import (
    BLPOP,
    FLOOR,
    MEMORY,
    OURS,
    REDIS_PY,
    REDIS_PY_FAST,
    RUEIDIS,
)
from benchmarks.redis.bars import verdicts
from benchmarks.redis.figures import Figures
from benchmarks.redis.report import bars, tables
from benchmarks.redis.scenarios import SCENARIOS, Round, Scenario
from benchmarks.redis.server import Server, server
from benchmarks.report import surroundings
from benchmarks.sample import Sample

PEERS = (FLOOR, BLPOP, OURS, MEMORY, REDIS_PY, REDIS_PY_FAST, RUEIDIS)
REPETITIONS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 unless something broke. Bars are told, not judged."""
    options = _options().parse_args(argv)
    chance = random.Random(options.seed)
    samples: list[Sample] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name, server() as running:
        folder = Path(name)
        about = surroundings(folder) | _versions(running)
        programs, notes = _programs(folder, options)
        cores = _cores()
        if None in cores:
            notes.append("Not all that is to run on a certain core could be put there.")
        for scenario in options.scenario or SCENARIOS:
            samples += _measure(
                SCENARIOS[scenario], running, options, chance, cores, programs, failed
            )
    found = list(verdicts(Figures(samples)))
    print(bars([v for v in found if v.holds is not None or not options.scenario]))
    print()
    print(tables(samples))
    for note in [*notes, *failed]:
        print(f"\n{note}")
    if options.json is not None:
        result = {
            "about": about,
            "notes": notes,
            "failed": failed,
            "seed": options.seed,
            "repetitions": _repetitions(options),
            "quick": options.quick,
            "bars": [
                {
                    "scenario": v.bar.scenario,
                    "what": v.bar.what,
                    "at_least": v.bar.at_least,
                    "limit": v.limit,
                    "figure": v.figure,
                    "holds": v.holds,
                }
                for v in found
            ],
            "samples": [sample.as_dict() for sample in samples],
        }
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 1 if failed else 0


def _measure(
    scenario: Scenario,
    running: Server,
    options: argparse.Namespace,
    chance: random.Random,
    cores: tuple[int | None, int | None],
    programs: dict[str, Path],
    failed: list[str],
) -> list[Sample]:
    entrants = [
        (peer, loop)
        for peer, loop in scenario.entrants
        if (not options.peer or peer in options.peer)
        and (peer != RUEIDIS or peer in programs)
    ]
    samples = []
    for repetition in range(_repetitions(options)):
        for peer, loop in chance.sample(entrants, len(entrants)):
            running.empty()
            seed = chance.randrange(2**32)
            round_ = Round(
                running, peer, loop, seed, options.quick, *cores, programs=programs
            )
            print(f"{scenario.name} {repetition}: {peer}, {loop}", file=sys.stderr)
            try:
                measured = scenario.measure(round_)
            except (AssertionError, RuntimeError) as exc:  # the others go on
                failed.append(f"{scenario.name}, {peer}, {loop}: {exc}")
                continue
            samples += [
                Sample(loop, scenario.name, metric, "redis", peer, repetition, value)
                for metric, values in measured.items()
                for value in values
            ]
    order = scenario.entrants
    return sorted(samples, key=lambda s: (order.index((s.peer, s.loop)), s.repetition))


def _cores() -> tuple[int | None, int | None]:
    if sys.platform != "linux":
        return None, None
    first, *others = sorted(os.sched_getaffinity(0), reverse=True)
    return first, others[-1] if others else None


def _repetitions(options: argparse.Namespace) -> int:
    return 1 if options.quick else int(options.repeat)


def _programs(
    folder: Path, options: argparse.Namespace
) -> tuple[dict[str, Path], list[str]]:
    scenarios = [SCENARIOS[name] for name in options.scenario or SCENARIOS]
    peers = {peer for scenario in scenarios for peer, _ in scenario.entrants}
    if RUEIDIS not in peers.intersection(options.peer or PEERS):
        return {}, []
    built = golang.build(folder)
    if isinstance(built, Path):
        return {RUEIDIS: built}, []
    return {}, [f"{RUEIDIS} is left out: {built}."]


def _versions(running: Server) -> dict[str, object]:
    return {
        "redis-server": running.info("server")["redis_version"],
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
        "command": ["python", "-m", "benchmarks.redis", *sys.argv[1:]],
    }


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.redis", description=__doc__)
    add = parser.add_argument
    add("--scenario", action="append", choices=SCENARIOS, help="default: all")
    add("--peer", action="append", choices=PEERS, help="default: all; repeatable")
    add("--repeat", type=int, default=REPETITIONS, help="repetitions, 3 by default")
    add("--seed", type=int, default=1, help="of the order and the random pauses")
    add("--json", type=Path, metavar="FILE", help="write all samples there")
    add("--quick", action="store_true", help="once, and little: does it still run?")
    return parser
