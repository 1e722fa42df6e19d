"""The Go judge as a fixture: built once for all workers of a test run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent
ELSEWHERE = "/usr/local/go/bin"  # where Go's own archive unpacks to


@dataclass(frozen=True, slots=True)
class GoVerdict:
    """What the linearizability checker and its companions found."""

    operations: int
    accesses: int
    """Accepted by the protected resources."""
    refused: int
    """Refused by them: stale fences."""
    violations: dict[str, list[str]]
    """By kind: exclusion, unfinished, fence, isolation, deadline, garbage."""

    @property
    def ok(self) -> bool:
        return not self.violations


GoJudge = Callable[[Iterable[Path], float], GoVerdict]
"""Called with history files and the lease in milliseconds."""


@pytest.fixture(scope="session")
def go_judge(go_judge_binary: Path) -> GoJudge:
    """The judge, or a failure that names what to install; never a skip."""
    return partial(run, go_judge_binary)


@pytest.fixture(scope="session")
def go_judge_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # one binary for all workers
    binary = shared / "judge"
    with (shared / "judge.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            build(binary)
    return binary


def build(binary: Path) -> None:
    """Compile SOURCE to `binary`, which is either whole or not there."""
    go = shutil.which("go") or shutil.which("go", path=ELSEWHERE)
    if go is None:
        pytest.fail("the Go judge needs Go: apt-get install golang-go")
    unfinished = binary.with_suffix(".unfinished")
    built = subprocess.run(
        # go.mod may be in no repository, or in one that git refuses to look at.
        [go, "build", "-buildvcs=false", "-o", unfinished, "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        pytest.fail(f"go build in {SOURCE}:\n{built.stderr}")
    unfinished.replace(binary)


def run(binary: Path, paths: Iterable[Path], lease_ms: float) -> GoVerdict:
    """Judge the histories in `paths`; a ValueError if they cannot be read."""
    ran = subprocess.run(
        [binary, "-json", f"-lease-ms={round(lease_ms)}", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode not in {0, 1}:
        raise ValueError(ran.stderr)
    said = json.loads(ran.stdout)
    violations: dict[str, list[str]] = {}
    for finding in said["resources"] or ():
        for kind, texts in finding["violations"].items():
            named = [f"{finding['resource']}: {text}" for text in texts]
            violations.setdefault(kind, []).extend(named)
    assert (said["verdict"] == "OK") == (ran.returncode == 0) == (not violations)
    return GoVerdict(said["operations"], said["accesses"], said["refused"], violations)
