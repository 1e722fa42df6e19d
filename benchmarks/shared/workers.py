"""The worker processes, from outside: started, talked to, ended."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.shared.jobs import Job

SILENCE = 90.0
"""Seconds after which a worker that owes a line is given up."""


class Worker:
    """A process that does one job."""

    def __init__(self, job: Job, program: Path | None = None) -> None:
        """Start it; ``program``: instead of our worker in Python."""
        self._job = job
        command = [sys.executable, "-m", "benchmarks.shared.worker"]
        if program is not None:
            command = [str(program)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(job))], stdin=pipe, stdout=pipe, text=True
        )

    def tell(self, word: object) -> None:
        """A line in."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def hear(self, name: str) -> dict[str, Any]:
        """The next line out, which has to be about ``name``; all of it."""
        assert self._process.stdout is not None
        alarm = threading.Timer(SILENCE, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        said: dict[str, Any] = json.loads(line) if line else {}
        if name not in said:
            who = f"{self._job.kind} of {self._job.peer} on {self._job.loop}"
            raise RuntimeError(f"{who} said {line[:200]!r} instead of {name}")
        return said

    def kill(self) -> None:
        """As ``kill -9``; gone when this returns."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let it end; kill it if it will not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def workers(
    *jobs: Job, programs: dict[str, Path] | None = None
) -> Iterator[list[Worker]]:
    """Processes that are ready, told nothing yet; all gone afterwards.

    ``programs``: of the peers that are none of our workers in Python.
    """
    started: list[Worker] = []
    try:
        started.extend(Worker(job, (programs or {}).get(job.peer)) for job in jobs)
        for worker in started:
            worker.hear("ready")
        yield started
    except BaseException:
        for worker in started:
            worker.kill()
        raise
    finally:
        for worker in started:
            worker.close()
