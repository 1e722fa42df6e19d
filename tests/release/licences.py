"""Checks the licences of all that an installation with every extra brings along.

`python -m tests.release.licences` prints them. `pyproject.toml` has the allowed ones.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import cast

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NAME = "aiorwlock-remote"
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
TEXTS = {"Apache 2.0": "Apache-2.0", "Apache License 2.0": "Apache-2.0"}
"""What older packages write in ``License``, by SPDX's names."""


def allowed() -> set[str]:
    """Return the licences that dependencies may have, by SPDX's names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    licences: list[str] = project["tool"][NAME]["allowed-licences"]
    return set(licences)


def dependencies(name: str = NAME, *extras: str) -> dict[str, Distribution]:
    """Return what an installed package needs with these extras, itself excepted.

    Raise ``PackageNotFoundError`` if one of them is not installed.
    """
    found: dict[str, Distribution] = {}
    visited: set[tuple[str, str]] = set()
    waiting = [(name, extra) for extra in ("", *extras)]
    while waiting:
        this = name, extra = waiting.pop()
        if this in visited:
            continue
        visited.add(this)
        found[name] = distribution(name)
        for line in found[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                other = re.sub(r"[-_.]+", "-", needed.name).lower()
                waiting += [(other, extra) for extra in ("", *needed.extras)]
    del found[NAME]
    return dict(sorted(found.items()))


def licence(package: Distribution) -> str:
    """Return a package's licence as an SPDX expression; "" if it tells none."""
    metadata = cast("Message", package.metadata)
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = metadata.get_all("Classifier") or []
    names = [
        CLASSIFIERS.get(line.split(" :: ")[-1], line)
        for line in classifiers
        if line.startswith("License :: OSI Approved :: ")
    ]
    if names:
        return " OR ".join(names)
    text = metadata.get("License") or ""
    first, *rest = text.splitlines() or [""]
    if rest:  # the whole text, under its title
        return CLASSIFIERS.get(first.strip(), first.strip())
    return TEXTS.get(text, text)


def is_allowed(expression: str, licences: Collection[str]) -> bool:
    """Whether some choice of an SPDX expression has only these licences."""
    choices = expression.strip("() ").split(" OR ")
    return any(
        all(part.strip("() ") in licences for part in choice.split(" AND "))
        for choice in choices
    )


def refused(
    packages: dict[str, Distribution], licences: Collection[str]
) -> Iterator[str]:
    """Yield the packages without an allowed licence."""
    for name, package in packages.items():
        expression = licence(package)
        if not is_allowed(expression, licences):
            yield f"{name} {package.version}: {expression or 'no licence'}"


def main(_: Sequence[str]) -> int:
    """Print the licences; return the exit code."""
    try:
        packages = dependencies(NAME, "all")
    except PackageNotFoundError as exc:
        print(f"not installed: {exc}", file=sys.stderr)
        return 1
    for name, package in packages.items():
        print(f"{name:24} {package.version:12} {licence(package)}")
    problems = list(refused(packages, allowed()))
    for problem in problems:
        print(f"licence not allowed: {problem}", file=sys.stderr)
    print(f"{len(packages)} dependencies, {len(problems)} with another licence")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
