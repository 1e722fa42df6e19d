"""``python -m tests.simulation``: many seeds, or the story of one."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.scenario import KINDS, simulate
from tests.simulation.test_simulation import summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", choices=KINDS, help="of the store; both if left out")
    parser.add_argument("--seed", type=int, help="tell the story of this seed only")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(KINDS)
    if options.seed is not None:
        run = simulate(options.seed, kinds[0])
        print(summary(run))
        sys.exit(bool(run.world.failures))
    began, cycles, requests, found = time.monotonic(), 0, 0, 0
    for kind in kinds:
        for seed in range(options.first, options.first + options.count):
            run = simulate(seed, kind)
            cycles, requests = cycles + run.cycles, requests + run.server.requests
            if run.world.failures:
                found += 1
                print(summary(run))
    print(
        f"{options.count} seeds of {' and '.join(kinds)}: {cycles} grants, "
        f"{requests} requests, {found} seeds with violations, "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
