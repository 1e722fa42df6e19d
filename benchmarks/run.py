"""``python -m benchmarks.run``: measure all peers, interleaved, and print a table.

Each repetition goes once through all peers of a scenario, in an order of its own, so
that a slow minute of the machine hits all of them. Numbers of different runs are not
compared; ratios to the floor of the same run are.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.adapters import PEERS
from benchmarks.loops import LOOPS
from benchmarks.peer import Peer
from benchmarks.report import rows, surroundings, table
from benchmarks.sample import Sample
from benchmarks.scenarios import SCENARIOS

QUICK = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 unless something broke. Times are never judged here."""
    options = _options().parse_args(argv)
    loops = options.loop or ["asyncio"]
    size = QUICK if options.quick else 1.0
    repetitions = 1 if options.quick else options.repeat
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        about = surroundings(Path(folder))
        chance = random.Random(options.seed)
        samples: list[Sample] = []
        for loop in loops:
            for scenario in options.scenario or SCENARIOS:
                samples += _measure(
                    loop, scenario, options, chance, Path(folder), size, repetitions
                )
    floors = {(loop, p.family): p.name for loop in loops for p in _floors(loop)}
    print(table(rows(samples, floors)))
    if options.json is not None:
        result = {
            "about": about,
            "seed": options.seed,
            "repetitions": repetitions,
            "size": size,
            "floors": [[*key, name] for key, name in floors.items()],
            "samples": [sample.as_dict() for sample in samples],
        }
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


def _measure(
    loop: str,
    scenario: str,
    options: argparse.Namespace,
    chance: random.Random,
    folder: Path,
    size: float,
    repetitions: int,
) -> list[Sample]:
    module = SCENARIOS[scenario]
    peers = [
        peer
        for peer in PEERS
        if loop in peer.loops
        and module.fits(peer)
        and (not options.peer or peer.name in options.peer)
    ]
    samples = []
    for repetition in range(repetitions):
        for peer in chance.sample(peers, len(peers)):
            place = Path(tempfile.mkdtemp(dir=folder))
            gc.collect()
            seed = chance.randrange(2**32)
            measured = module.measure(peer, loop, place, size, seed)
            samples += [
                Sample(
                    loop, scenario, metric, peer.family, peer.name, repetition, value
                )
                for metric, value in measured.items()
            ]
            print(f"{loop}, {scenario} {repetition}: {peer.name}", file=sys.stderr)
    order = [peer.name for peer in PEERS]
    return sorted(samples, key=lambda s: (s.metric, order.index(s.peer), s.repetition))


def _floors(loop: str) -> list[Peer]:
    return [peer for peer in PEERS if peer.floor and loop in peer.loops]


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    add = parser.add_argument
    add("--loop", action="append", choices=LOOPS, help="default: asyncio; repeatable")
    add("--scenario", action="append", choices=SCENARIOS, help="default: all")
    add("--peer", action="append", choices=[p.name for p in PEERS], help="default: all")
    add("--repeat", type=int, default=5, help="repetitions, 5 by default")
    add("--seed", type=int, default=1, help="of the order and the random pauses")
    add("--dir", type=Path, help="where to put the files; the disk matters")
    add("--json", type=Path, metavar="FILE", help="write all samples there")
    add("--quick", action="store_true", help="once, and little: does it still run?")
    return parser


if __name__ == "__main__":
    sys.exit(main())
