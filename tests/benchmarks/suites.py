"""Suites of benchmarks: run as a user does, or judged by figures made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sample import Sample
from benchmarks.shared.bars import Bar, Verdict, verdicts
from benchmarks.shared.figures import Figures

ROOT = Path(__file__).parents[2]


def bench(
    suite: str, *options: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """``python -m benchmarks.suite``, quick. ``path``: where it finds programs."""
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{suite}", "--quick", *options],
        cwd=ROOT,
        env=os.environ if path is None else os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def quick(
    suite: str, folder: Path, *options: str
) -> tuple[dict[str, Any], list[Sample]]:
    """All that is told of a run in which nothing failed, and what was measured."""
    file = folder / "result.json"
    ran = bench(suite, *options, "--json", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| holds |" in ran.stdout
    result: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert result["failed"] == []
    return result, [Sample(**sample) for sample in result["samples"]]


def of_scenarios(*names: str) -> list[str]:
    """Options for these alone."""
    return [word for name in names for word in ("--scenario", name)]


def samples(scenario: str, metric: str, peer: str, *values: float) -> list[Sample]:
    """One a repetition."""
    return [
        Sample("asyncio", scenario, metric, "made up", peer, repetition, value)
        for repetition, value in enumerate(values)
    ]


def verdict_by(bars: Sequence[Bar], what: str, *groups: list[Sample]) -> Verdict:
    """What the bar of that name, ``scenario: what``, makes of these samples."""
    figures = Figures([sample for group in groups for sample in group])
    (found,) = [
        v for v in verdicts(bars, figures) if f"{v.bar.scenario}: {v.bar.what}" == what
    ]
    return found
