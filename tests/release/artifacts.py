"""Builds wheel and sdist of the last commit twice, and checks what they contain.

`python -m tests.release.artifacts DIST` leaves both files in DIST. The builds differ in
folder, umask, time zone, locale and way (the wheel from the sdist, the wheel from the
tree), so equal bytes show that others can rebuild what was published.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PACKAGE = "aiorwlock_remote"
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
"""The files of the wheel's ``.dist-info``."""
ASSETS = {".cql", ".html", ".lua", ".sql", ".typed"}
"""Kinds of files besides Python without which the package does not work."""
CACHES = {".cache", ".git", ".nox", ".venv", "__pycache__", "_build", "dist"}


@dataclass(frozen=True, slots=True)
class Way:
    """Circumstances of a build that must not show in its result."""

    folder: str
    umask: int
    environment: Mapping[str, str]
    from_the_sdist: bool


WAYS = (
    Way("here", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8"}, from_the_sdist=True),
    Way(
        "there/and deeper",
        0o077,
        {"TZ": "Pacific/Kiritimati", "LC_ALL": "C"},
        from_the_sdist=False,
    ),
)


def build(scratch: Path, way: Way) -> dict[str, Path]:
    """Build the last commit in a folder of its own; return the files by their names."""
    source = scratch / way.folder / "source"
    output = scratch / way.folder / "dist"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
    )
    command = [sys.executable, "-m", "build", "--no-isolation"]
    kinds = [] if way.from_the_sdist else ["--sdist", "--wheel"]
    before = os.umask(way.umask)
    try:
        subprocess.run(
            ["tar", "-x", "--no-same-permissions"],
            cwd=source,
            check=True,
            input=archive.stdout,
        )
        subprocess.run(
            [*command, *kinds, "--outdir", str(output)],
            cwd=source,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **way.environment, "SOURCE_DATE_EPOCH": last_commit()},
        )
    finally:
        os.umask(before)
    return {path.name: path for path in output.iterdir()}


def last_commit() -> str:
    """Return the time of the last commit, in seconds since 1970."""
    return git("log", "-1", "--format=%ct").strip()


def committed() -> set[str]:
    """Return the files of the last commit."""
    return set(git("ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")) - {""}


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def differences(one: Mapping[str, Path], other: Mapping[str, Path]) -> Iterator[str]:
    """Yield what is not the same in two builds."""
    if one.keys() != other.keys():
        yield f"built {sorted(one)} and {sorted(other)}"
    for name in sorted(one.keys() & other.keys()):
        if one[name].read_bytes() != other[name].read_bytes():
            yield f"{name}: two builds of one commit differ"


def wheel_problems(wheel: Path, sources: Collection[str]) -> Iterator[str]:
    """Yield what is missing in a wheel or does not belong there.

    Args:
        wheel: its file.
        sources: the files of the commit, relative to the repository.
    """
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    folder = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    expected = {name for name in sources if name.startswith(f"{PACKAGE}/")}
    expected |= {f"{folder}/{name}" for name in METADATA}
    yield from _wrong_names("wheel", set(contents), expected)
    kinds = {PurePosixPath(name).suffix for name in contents}
    yield from (f"the wheel has no {kind}" for kind in sorted(ASSETS - kinds))
    yield from machine_paths(contents)


def sdist_problems(sdist: Path, sources: Collection[str]) -> Iterator[str]:
    """Yield in what a sdist differs from the commit. Distributors run the tests and
    build the documentation, so a sdist has all files.
    """
    contents = {}
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            _, _, name = member.name.partition("/")
            file = archive.extractfile(member)
            contents[name] = file.read() if file else b""
    yield from _wrong_names("sdist", set(contents), {*sources, "PKG-INFO"})
    yield from machine_paths(contents)


def _wrong_names(kind: str, found: set[str], expected: set[str]) -> Iterator[str]:
    yield from (f"not in the {kind}: {name}" for name in sorted(expected - found))
    yield from (f"{name} is in the {kind}" for name in sorted(found - expected))
    for name in sorted(found):
        if CACHES & set(PurePosixPath(name).parts) or name.endswith(".pyc"):
            yield f"{name} is of a cache"


def machine_paths(contents: Mapping[str, bytes]) -> Iterator[str]:
    """Yield each file that names a folder of the machine that builds."""
    folders = [str(ROOT), tempfile.gettempdir() + "/release-", str(Path.home()) + "/"]
    for name, content in contents.items():
        for folder in folders:
            if folder.encode() in content:
                yield f"{name} names {folder}"


def main(arguments: Sequence[str]) -> int:
    """Build and check; return the exit code."""
    (target,) = map(Path, arguments)
    changed = git("status", "--porcelain").splitlines()
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        one, other = (build(Path(scratch), way) for way in WAYS)
        problems = [f"not committed, so not built: {line}" for line in changed]
        problems += differences(one, other)
        sources = committed()
        for name, path in one.items():
            check = wheel_problems if name.endswith(".whl") else sdist_problems
            problems += check(path, sources)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in one.values():
            shutil.copyfile(path, target / path.name)
            print(f"{path.name}: {path.stat().st_size} bytes, the same in two builds")
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
