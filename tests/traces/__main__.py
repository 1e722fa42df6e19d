"""``python -m tests.traces STORE COMMANDS``: a long recording, replayed run by run.

Every tenth run has one task per process and resource, as the model has it, and is
checked by TLC as well. After each run the figures so far are printed, as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.traces.abstraction import sample
from tests.traces.history import Request
from tests.traces.recording import Recording, record
from tests.traces.replay import Forked
from tests.traces.stores import STORES, started
from tests.traces.tla import validate

MODEL_EVERY = 10
SAMPLE = 60
MODELLED: dict[str, Any] = {
    "kinds": ("reader", "writer"),
    "shares_entries": False,
    "pushes": False,
    "lost": 0.0,
    "names": 6,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.traces")
    parser.add_argument("store", choices=STORES)
    parser.add_argument("commands", nargs="?", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="traces-") as name:
        Path(name, "server").mkdir()
        with started(options.store, Path(name, "server")) as place:
            run = LongRun(place.url, place.port, Path(name))
            seed = options.seed
            while run.total < options.commands and not run.differences:
                run.go_on(seed)
                seed += 1
                figures = {
                    "store": options.store,
                    "seeds": seed - options.seed,
                    **run.figures(),
                }
                print(json.dumps(figures), flush=True)
    sys.exit(bool(run.differences))


class LongRun:
    """Many recordings of one store, and what was found in them."""

    def __init__(self, url: str, port: int, folder: Path) -> None:
        self.total = 0
        self.differences = 0
        self._url, self._port, self._folder = url, port, folder
        self._began = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()

    def go_on(self, seed: int) -> None:
        """Record and replay one run."""
        folder = self._folder / f"run{seed}"
        try:
            recording = record(
                self._url, folder, port=self._port, seed=seed, **_plan(seed)
            )
        except Forked as exc:
            self._differs(seed, str(exc))
            return
        shutil.rmtree(folder)
        self.total += recording.requests
        self._counts["runs"] += 1
        self._counts["resources"] += len(recording.histories)
        for history in recording.histories.values():
            for request in history:
                self._count(request)
        difference = recording.difference()
        if difference is not None:
            self._differs(seed, str(difference))
        elif seed % MODEL_EVERY == 0:
            self._check_model(seed, recording)

    def figures(self) -> dict[str, Any]:
        return {
            "commands": self.total,
            "differences": self.differences,
            **self._counts,
            "kinds": dict(sorted(self._kinds.items())),
            "seconds": round(time.monotonic() - self._began),
        }

    def _count(self, request: Request) -> None:
        self._kinds[type(request.command).__name__.lower()] += 1
        self._counts["changes"] += request.before != request.after
        self._counts["doubtful, carried out"] += not request.certain
        doorman = request.after.record
        self._counts["pushed grants"] += doorman is not None and doorman.pushed
        before = request.before.record
        if before is not None:
            dead = sum(grant.dead(request.now) for grant in before.grants)
            self._counts["expired grants"] += dead

    def _check_model(self, seed: int, recording: Recording) -> None:
        samples = {
            name: steps
            for name, history in recording.histories.items()
            if (steps := sample(history, recording.clients, SAMPLE))
        }
        if not samples:
            return
        verdict = validate(list(samples.values()))
        if verdict.violated:
            self._differs(seed, f"TLC: {verdict.violated} is violated")
        for (name, steps), reached in zip(
            samples.items(), verdict.reached, strict=True
        ):
            self._counts["histories checked by TLC"] += 1
            self._counts["commands checked by TLC"] += len(steps)
            if reached < len(steps):
                request = recording.histories[name][reached]
                self._differs(seed, f"TLC: no such step\n{steps[reached]}\n{request}")

    def _differs(self, seed: int, what: str) -> None:
        self.differences += 1
        print(f"run {seed} of {self._url}: {what}")


def _plan(seed: int) -> dict[str, Any]:
    if seed % MODEL_EVERY == 0:
        return {**MODELLED, "turns": 20}
    chance = random.Random(f"plan {seed}")
    plan: dict[str, Any] = {
        "leases": chance.choice([(0.25, 0.5, 2.0), (0.25, 2.0, 5.0), (2.0,)]),
        "body": chance.choice([0.002, 0.005, 0.02]),
        "lost": chance.choice([0.0, 0.02, 0.05]),
        "pushes": chance.random() < 0.8,
    }
    if seed % 3 == 0:  # many tasks crowd at few resources
        return {**plan, "tasks": 6, "names": chance.choice([1, 2]), "turns": 60}
    return {**plan, "tasks": 24, "names": 16, "turns": 50}


if __name__ == "__main__":
    main()
