"""Draw the layers of the package: `python -m docs.pictures.layers` writes layers.svg.

The layers are those of import-linter's contract in pyproject.toml, in its order; each
may import the ones below.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from docs.pictures.svg import FOLDER, Picture

ROOT = FOLDER.parents[1]
WORDS: Mapping[str, str] = {
    "cli": "rwlock, the command line",
    "testing": "conformance suite; web frameworks; signatures of others",
    "sync": "the same names without await, for threads",
    "locks": "Locks, Mutex, RWLock, Held; leaders, row locks, occupancy",
    "registry": "URL schemes; one package per store; waiting, renewing",
    "cas": "compare-and-set stores; stores under a lock of the system",
    "ports": "the protocols between runtime and stores",
    "fencing": "resources that refuse old fences",
    "_util": "pending replies, threads, driver loops",
    "logs": "log events, calls of user code",
    "core": "the rules, without clock, loop and driver",
    "errors": "the tree of errors",
}
"""What a layer does, by the first of its packages."""

LEFT, FULL, GAP, STEP = 10.0, 420.0, 8.0, 46.0


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest first."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (found,) = (one["layers"] for one in contracts if one["id"] == "layers")
    return [re.findall(r"\w+", layer) for layer in found]


def picture() -> Picture:
    """Draw a row for each layer, with a box for each of its packages."""
    rows = layers()
    drawn = Picture(
        "The layers, from the command line down to the errors", 8 + STEP * len(rows)
    )
    for number, packages in enumerate(rows):
        y = 8 + STEP * number
        width = (FULL - GAP * (len(packages) - 1)) / len(packages)
        drawn.add('<g class="layer">')
        for place, package in enumerate(packages):
            x = round(LEFT + place * (width + GAP), 1)
            drawn.box(x, y, round(width, 1), 22, "box", border="blue")
            drawn.words(
                round(x + width / 2, 1),
                y + 15,
                package,
                "blue",
                anchor="middle",
                bold=True,
            )
        drawn.words(LEFT, y + 36, WORDS[packages[0]], "dim")
        drawn.add("</g>")
    return drawn


if __name__ == "__main__":
    picture().write("layers.svg")
