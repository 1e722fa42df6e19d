"""A process killed at any system call of a step leaves all of it behind, or nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def test_killed_at_every_system_call() -> None:
    """Nobody is blocked, no fence is granted twice, no file is left lying about."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.backends.files.killed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    calls = [int(line.rpartition(" ")[2]) for line in ran.stdout.splitlines()]
    assert len(calls) == 9
    assert min(calls) > 5, "the calls were not counted"
