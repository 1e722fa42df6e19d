"""Suites of benchmarks: run as a user runs them, or judged by invented figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Bar, Figures, Sample, Verdict, verdicts
from benchmarks.harness.scenario import Scenario

ROOT = Path(__file__).parents[2]


def bench(
    suite: str, *options: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m benchmarks.suite --quick``; ``path`` replaces PATH."""
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{suite}", "--quick", *options],
        cwd=ROOT,
        env=os.environ if path is None else os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def quick(
    suite: str, folder: Path, *options: str
) -> tuple[dict[str, Any], list[Sample]]:
    """Return result and samples of a quick run in which nothing failed."""
    file = folder / "result.json"
    ran = bench(suite, *options, "--json", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| holds |" in ran.stdout
    result: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert result["failed"] == []
    return result, [Sample(**sample) for sample in result["samples"]]


def quick_with_every_peer(
    suite: str,
    folder: Path,
    chosen: Sequence[str],
    scenarios: Mapping[str, Scenario[Any]],
    bars: Sequence[Bar],
) -> tuple[dict[str, Any], Figures]:
    """Return what a quick run says of its servers, and its figures.

    Each of the chosen scenarios has all its peers, and its bars are judged.
    """
    result, measured = quick(suite, folder, *of_scenarios(*chosen))
    for name in chosen:
        peers = {(s.peer, s.loop) for s in measured if s.scenario == name}
        assert peers == set(scenarios[name].entrants)
    silent = {bar["scenario"] for bar in result["bars"] if bar["holds"] is None}
    assert not silent & set(chosen)
    assert len(result["bars"]) == len(bars)
    about: dict[str, Any] = result["about"]
    return about, Figures(measured)


def of_scenarios(*names: str) -> list[str]:
    """Return the options that choose these scenarios."""
    return [word for name in names for word in ("--scenario", name)]


def samples(scenario: str, metric: str, peer: str, *values: float) -> list[Sample]:
    """Return invented samples, one a repetition."""
    return [
        Sample("asyncio", scenario, metric, "made up", peer, repetition, value)
        for repetition, value in enumerate(values)
    ]


def verdict_by(bars: Sequence[Bar], what: str, *groups: list[Sample]) -> Verdict:
    """Return the verdict of the bar ``scenario: what`` on these samples."""
    figures = Figures([sample for group in groups for sample in group])
    (found,) = [
        v for v in verdicts(bars, figures) if f"{v.bar.scenario}: {v.bar.what}" == what
    ]
    return found
