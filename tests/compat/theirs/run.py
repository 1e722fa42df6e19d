"""Runs the lock tests of redis-py and aiorwlock against our classes, on a real Redis.

``python -m tests.compat.theirs.run``, or ``nox -s compat``: their source distributions
are fetched into a temporary folder. ``differences.txt`` says what has to fail, and why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.redis import RedisServer

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Theirs:
    """Tests of another library.

    Attributes:
        name: the library.
        release: whose source distribution is fetched: the newest that has its tests.
        plugin: the pytest plugin that puts our classes in the place of theirs.
        files: the tests.
        options: those of pytest; ``{url}`` is the server.
        least: how many of these tests have to pass.
    """

    name: str
    release: str
    plugin: str
    files: tuple[str, ...]
    options: tuple[str, ...]
    least: int


SUITES = (
    Theirs(
        "redis",
        version("redis"),
        "ours_in_place",
        ("tests/test_lock.py", "tests/test_asyncio/test_lock.py"),
        ("--redis-url={url}",),
        least=58,
    ),
    Theirs(
        "aiorwlock",
        "1.4.0",
        "rwlocks_in_place",
        ("tests/test_rwlock.py", "tests/test_corner_cases.py"),
        # Its settings are those of an older pytest-asyncio.
        ("-c", os.devnull, "--rootdir=.", "-p", "no:asyncio"),
        least=40,
    ),
)


def main() -> int:
    """Run all suites; return the exit code."""
    with TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            return max([run(one, Path(folder), server.url) for one in SUITES])
        finally:
            server.close()


def run(theirs: Theirs, folder: Path, url: str) -> int:
    """Fetch the tests and run them; 0 if all but the listed ones passed."""
    root = fetched(theirs, folder)
    options = [option.format(url=url) for option in theirs.options]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-W", "ignore"),
            *("-p", "left_out", "-p", theirs.plugin),
            *options,
            *theirs.files,
        ],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(HERE),
            "LOCKS_URL": url,
            "THEIRS": theirs.name,
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(f"{theirs.name} {theirs.release}:\n{ended.stdout}")
    passed = re.search(r"(\d+) passed", ended.stdout)
    if passed is None or int(passed[1]) < theirs.least:
        print(f"less than {theirs.least} tests of {theirs.name} passed")
        return 1
    return ended.returncode


def fetched(theirs: Theirs, folder: Path) -> Path:
    """Return the folder with the unpacked source distribution."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps"),
            *("--no-binary", theirs.name, "-d", str(folder)),
            f"{theirs.name}=={theirs.release}",
        ],
        check=True,
    )
    name = f"{theirs.name}-{theirs.release}"
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


if __name__ == "__main__":
    sys.exit(main())
