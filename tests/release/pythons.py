"""Finds an interpreter of each Python that the package supports.

`python -m tests.release.pythons 3.14` prints its path. The interpreter is on `PATH`, or
is fetched from a newer Debian suite as the servers of the tests are
(`tests/servers/roots.py`). `3.13t`, the free-threaded build, is in no suite: it is
built from Debian's source, once per machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.servers.roots import cache_folder, root_of, source_of
from tests.servers.shared import fetched

SUITES = {"3.14": "sid", "3.15": "sid"}
SOURCES = {"3.13t": "trixie"}


def interpreter(version: str) -> Path:
    """Return the interpreter of a version, e.g. `3.14` or `3.13t`.

    Raise ``LookupError`` if there is none.
    """
    name = f"python{version}"
    for folder in os.environ["PATH"].split(os.pathsep):
        # pyenv's stand-ins fail unless their version is activated.
        path = shutil.which(name, path=folder)
        if path is not None and _runs(Path(path)):
            return Path(path)
    if version in SOURCES:
        prefix = fetched(
            cache_folder(), f"built-{name}", partial(_built, version, SOURCES[version])
        )
        return prefix / "bin" / name
    if version in SUITES:
        return Path(root_of(SUITES[version], name, f"{name}-venv").program(name))
    raise LookupError(f"{name} is not on PATH")


def _runs(python: Path) -> bool:
    done = subprocess.run([python, "-c", ""], check=False, capture_output=True)
    return done.returncode == 0


def _built(version: str, suite: str, prefix: Path) -> None:
    working = prefix.with_name(f"{prefix.name}.part")
    shutil.rmtree(working, ignore_errors=True)
    source = source_of(suite, f"python{version.rstrip('t')}", working)
    options = ["--disable-gil", "--with-ensurepip=no", f"--prefix={prefix}"]
    for command in (
        ["./configure", "-q", *options],
        ["make", "-s", f"-j{os.cpu_count() or 1}"],
        ["make", "-s", "install", f"DESTDIR={working}/installed"],
    ):
        subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    (working / "installed" / prefix.relative_to("/")).rename(prefix)
    shutil.rmtree(working)


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
