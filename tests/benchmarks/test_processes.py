"""What the benchmarks see of other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks.harness.processes import (
    MEASURABLE,
    children_on,
    cpu_seconds,
    resident_bytes,
)

pytestmark = pytest.mark.skipif(not MEASURABLE, reason="needs /proc")
TEN_MB = "x = b'x' * 10_000_000; print('ready', flush=True); input()"


def test_memory_of_another_process_is_seen() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", TEN_MB], stdin=pipe, stdout=pipe
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert resident_bytes(other.pid) > 10_000_000
        other.communicate(b"\n")


def test_cpu_time_grows_with_work_and_not_with_sleep() -> None:
    ours = [os.getpid()]
    started = cpu_seconds(ours)
    time.sleep(0.2)
    slept = cpu_seconds(ours) - started
    ends = time.process_time() + 0.2
    while time.process_time() < ends:
        pass
    worked = cpu_seconds(ours) - started - slept
    # The kernel counts in steps of a hundredth of a second.
    assert worked >= 0.18
    assert slept < worked


def test_children_run_on_the_core_they_are_put_on() -> None:
    core = max(os.sched_getaffinity(0))
    everywhere = os.sched_getaffinity(0)
    code = "import os; print(os.sched_getaffinity(0))"
    with children_on(core):
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert said.stdout.strip() == str({core})
    assert os.sched_getaffinity(0) == everywhere
