"""The picture of the layers in docs/architecture.md is import-linter's contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_the_contracts_layers_in_their_order() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c["id"] == "layers")
    picture = ET.parse(ROOT / "docs/pictures/layers.svg")  # noqa: S314 - a file of our own
    drawn = [
        [text.text for text in layer.iter(f"{SVG}text") if text.get("class") == "blue"]
        for layer in picture.iter(f"{SVG}g")
    ]
    assert drawn == [re.findall(r"\w+", layer) for layer in layers]


def test_the_page_shows_the_picture() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert "](pictures/layers.svg)" in page
