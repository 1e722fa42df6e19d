"""A copy of the project in which something is wrong, and whether its tests pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".nox", ".venv", ".git", ".cache", "__pycache__")


def copied(where: Path) -> Path:
    """Return a copy of the project to change."""
    shutil.copytree(ROOT, where, ignore=LEFT_OUT)
    return where


@contextmanager
def changed(file: Path, text: str) -> Iterator[None]:
    """Let a file have another text meanwhile."""
    before = file.read_text("utf-8")
    _write(file, text)
    try:
        yield
    finally:
        _write(file, before)


def tests_pass(copy: Path, *words: str, seconds: float) -> bool:
    """Whether no test fails in a copy; one that hangs has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    try:
        ran = subprocess.run(
            [*command, *words],
            cwd=copy,
            env={"PATH": f"{os.defpath}:/usr/sbin", "PYTHONPATH": str(copy)},
            capture_output=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return False
    # If no test was chosen, none has failed.
    return ran.returncode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def _write(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    # What was compiled is known by seconds and size, which may be those of before.
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()
