"""The wall clock of a program that runs is set forward and back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.clock import SteppedClock

TELLS = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"


def test_the_wall_clock_alone_is_set(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    command = [*clock.before, sys.executable, "-c", TELLS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for seconds in (0.0, 1.75, -3600.25, 0.0):
            clock.set(seconds)
            print("tell", file=program.stdin, flush=True)
            wall, monotonic = map(float, program.stdout.readline().split())
            assert wall - time.time() == pytest.approx(seconds, abs=0.2)
            assert monotonic == pytest.approx(time.monotonic(), abs=0.2)
        print(file=program.stdin, flush=True)
