"""Worker processes of one test: started, killed, paused, and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from aiorwlock_remote.testing.history import Event, History, read_history

ROOT = Path(__file__).parents[2]
ENDS_IN = 300.0
"""Seconds that a worker has for a proper end."""


class HistoryTail:
    """Reader of the histories in a folder while they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were written since the last call, file by file."""
        for path in sorted(self._folder.glob("*.jsonl")):
            if path.stat().st_size == self._read[path]:
                continue
            with path.open("rb") as file:
                file.seek(self._read[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] += len(line)
                    yield line


class WorkerPool:
    """Workers on one store and one history folder."""

    def __init__(
        self,
        url: str,
        folder: Path,
        program: str = "tests.faults.worker",
        before: Sequence[str] = (),
    ) -> None:
        """``program``: the module that a worker runs; ``before``: see ``clock``."""
        self.folder = folder
        self._before = before
        self._program = program
        self.url = url
        self._halt = folder / "halt"
        self._numbers = count()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._nemesis = History(folder / "nemesis.jsonl", process="nemesis")

    @property
    def names(self) -> list[str]:
        """The workers that run."""
        return list(self._running)

    def start(
        self,
        url: str | None = None,
        before: Sequence[str] = (),
        /,
        **plan: float | str,
    ) -> str:
        """Start a worker and wait until it works; its name.

        ``url``: another store; ``before``: of this worker alone.
        """
        name = f"w{next(self._numbers)}"
        arguments = [url or self.url, str(self.folder), name, json.dumps(plan)]
        process = subprocess.Popen(
            [*self._before, *before, sys.executable, "-m", self._program, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._running[name] = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{name} did not start"
        return name

    def pid(self, name: str) -> int:
        """The process id of a worker that runs."""
        return self._running[name].pid

    def ended(self) -> dict[str, int]:
        """The workers that ended by themselves, with their exit codes."""
        codes = {name: process.poll() for name, process in self._running.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def kill(self, name: str) -> None:
        """SIGKILL, noted in the history once it is dead."""
        process = self._running.pop(name)
        process.kill()
        process.communicate()
        self._nemesis.died(name)

    def leave(self, *names: str) -> None:
        """SIGTERM, and wait for a proper end of each."""
        leaving = {name: self._running.pop(name) for name in names}
        for process in leaving.values():
            process.terminate()
        for name, process in leaving.items():
            try:
                process.communicate(timeout=ENDS_IN)
            finally:
                process.kill()
            assert process.returncode == 0, f"{name} exited {process.returncode}"

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """SIGSTOP for as long as the block runs."""
        os.kill(self._running[name].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._running[name].pid, signal.SIGCONT)

    def halt(self) -> None:
        """Let nobody ask, and whoever is inside stay there; also who starts now."""
        self._halt.touch()

    def go_on(self) -> None:
        """The end of that."""
        self._halt.unlink()

    def join(self) -> None:
        """Wait for all; a worker that failed fails the test."""
        while self._running:
            name, process = self._running.popitem()
            process.communicate()
            assert process.returncode == 0, f"{name} exited {process.returncode}"

    def history(self) -> list[Event]:
        """Everything that was written down, file by file."""
        return list(read_history(sorted(self.folder.glob("*.jsonl"))))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.kill()
            process.communicate()
        self._nemesis.close()
