"""Finds an interpreter of each Python that the package supports.

`python -m tests.release.pythons 3.14` prints its path. The interpreter is on `PATH`, or
is fetched from a newer Debian suite as the servers of the tests are
(`tests/servers/roots.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.roots import root_of

SUITES = {"3.14": "sid", "3.15": "sid"}


def interpreter(version: str) -> Path:
    """Return the interpreter of a version, e.g. `3.14`.

    Raise ``LookupError`` if there is none.
    """
    name = f"python{version}"
    for folder in os.environ["PATH"].split(os.pathsep):
        # pyenv's stand-ins fail unless their version is activated.
        path = shutil.which(name, path=folder)
        if path is not None and _runs(Path(path)):
            return Path(path)
    if version in SUITES:
        return Path(root_of(SUITES[version], name, f"{name}-venv").program(name))
    raise LookupError(f"{name} is not on PATH")


def _runs(python: Path) -> bool:
    done = subprocess.run([python, "-c", ""], check=False, capture_output=True)
    return done.returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Print the interpreter; return the exit code."""
    (version,) = arguments
    try:
        print(interpreter(version))
    except LookupError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
