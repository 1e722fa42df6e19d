"""The lowest versions that `pyproject.toml` allows, as constraints for `nox -s least`.

`python -m tests.release.lowest FILE` has a line for each package that extras name. It
fails if a bound is lower than what all extras together can be installed with: such a
bound would never be tested.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def bounds(project: Mapping[str, Any]) -> dict[str, Version]:
    """Return the lower bound of each package that a project's extras name."""
    own = canonicalize_name(project["name"])
    found: dict[str, Version] = {}
    for lines in (project["dependencies"], *project["optional-dependencies"].values()):
        for needed in map(Requirement, lines):
            name = canonicalize_name(needed.name)
            if name == own:
                continue
            (bound,) = (s.version for s in needed.specifier if s.operator == ">=")
            found[name] = max(Version(bound), found.get(name, Version("0")))
    return found


def resolved(text: str) -> dict[str, Version]:
    """Return the versions of a file of pins."""
    pins = (line.partition(";")[0].strip().split("==") for line in text.splitlines())
    return {canonicalize_name(name): Version(pin) for name, pin in pins}


def untested(
    lowest: Mapping[str, Version], found: Mapping[str, Version]
) -> Iterator[str]:
    """Yield the bounds that are lower than what can be installed."""
    for name, bound in sorted(lowest.items()):
        if found[name] != bound:
            yield f"{name}>={bound} cannot be tested: the lowest is {found[name]}"


def main(arguments: Sequence[str]) -> int:
    """Write the file; return the exit code."""
    (target,) = map(Path, arguments)
    text = subprocess.run(
        [
            *("uv", "pip", "compile", "-q", "pyproject.toml", "--all-extras"),
            *("--resolution", "lowest-direct", "--python", sys.executable),
            *("--no-header", "--no-annotate"),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lowest = bounds(project)
    found = resolved(text)
    lines = [f"{name}=={found[name]}" for name in sorted(lowest)]
    target.write_text("\n".join([*lines, ""]), "utf-8")
    print(*lines, sep="\n")
    problems = list(untested(lowest, found))
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
