"""The benchmarks still run, and report what they measured. No time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.report import Sample, ratio_tables, rows
from benchmarks.local.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_quick_measures_every_peer_in_every_scenario(loop: str, tmp_path: Path) -> None:
    result = quick(tmp_path, "--loop", loop)
    measured = {
        (sample["scenario"], sample["peer"])
        for sample in result["samples"]
        if sample["value"] > 0 and sample["loop"] == loop
    }
    assert measured == {
        (name, peer)
        for name, scenario in SCENARIOS.items()
        for peer, its_loop in scenario.entrants
        if its_loop == loop
    }
    assert result["seed"] == 1
    assert result["about"]["packages"]["anyio"]
    assert {"processor", "cores", "python", "sqlite"} <= set(result["about"])


def test_what_to_measure_can_be_chosen(tmp_path: Path) -> None:
    chosen = ("--scenario", "alone", "--peer", "memory:// mutex")
    result = quick(tmp_path, *chosen)
    found = {(s["scenario"], s["peer"]) for s in result["samples"]}
    assert found == {("alone", "memory:// mutex")}


def quick(folder: Path, *options: str) -> dict[str, Any]:
    file = folder / "result.json"
    command = [sys.executable, "-m", "benchmarks.local", "--quick", "--json", str(file)]
    ran = subprocess.run(
        [*command, "--dir", str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert "| of floor |" in ran.stdout
    result: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return result


# -------------------------------------------------------------------- report


def sample(peer: str, repetition: int, value: float) -> Sample:
    return Sample("asyncio", "alone", "cycle, µs", "local", peer, repetition, value)


def no_floor(peer: str, loop: str) -> None:
    del peer, loop


def test_ratios_are_taken_within_a_repetition() -> None:
    # The second repetition was ten times slower, for both.
    samples = [
        *(sample("floor", n, value) for n, value in enumerate([1, 10, 1])),
        *(sample("ours", n, value) for n, value in enumerate([3, 30, 4])),
    ]
    floor, ours = rows(samples, lambda _, __: "floor")
    assert (floor.times_floor, ours.times_floor) == (1, 3)
    assert (ours.median, ours.least, ours.most, ours.repetitions) == (4, 3, 30, 3)


def test_without_a_floor_there_is_no_ratio() -> None:
    (row,) = rows([sample("ours", 0, 1)], no_floor)
    assert row.times_floor is None


def test_a_table_for_each_metric() -> None:
    other = Sample("trio", "alone", "cycle, µs", "local", "ours", 0, 1234.5)
    shown = ratio_tables(rows([sample("ours", 0, 0.5), other], no_floor))
    assert shown.count("| lock | cycle, µs |") == 2
    assert "| ours | 0.50 | 0.50 … 0.50 |  |" in shown
    assert "| ours | 1,234 | 1,234 … 1,234 |  |" in shown
