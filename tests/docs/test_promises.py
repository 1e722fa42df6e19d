"""The table of what shows each promise names what is there, and has no empty cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.citations import files_with
from tests.traces.tla import models

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SPEC = models()
CONTROLS = (
    *(TESTS / "conformance").glob("broken*.py"),
    *(TESTS / "simulation").glob("planted*.py"),
    TESTS / "soak" / "planted.py",
)


def rows() -> Iterator[list[str]]:
    text = (ROOT / "docs/evidence/promises.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


ROWS = list(rows())


def named(column: int) -> list[str]:
    return sorted(
        {name for row in ROWS for name in re.findall("`([^`]+)`", row[column])}
    )


def defined(name: str) -> bool:
    pattern = re.compile(rf"^ *(class|(async )?def) {name}\b", re.MULTILINE)
    return any(pattern.search(file.read_text("utf-8")) for file in CONTROLS)


def test_each_promise_has_a_row_and_no_cell_is_empty() -> None:
    text = (ROOT / "docs/guarantees.md").read_text("utf-8")
    promised = text.split("## What is promised\n")[1].split("## ")[0]
    promises = re.findall(r"^\*\*([^*]+)\.\*\*", promised, re.MULTILINE)
    assert [row[0] for row in ROWS] == promises
    for row in ROWS:
        assert len(row) == 5
        assert all(row), row
        assert all(": " in cell for cell in row if cell.startswith("none")), row


@pytest.mark.parametrize("name", named(1))
def test_the_model_has_the_property(name: str) -> None:
    of_modules = chain.from_iterable((m.safe, m.live) for m in SPEC.MODULES.values())
    assert name in {*SPEC.MODULES, *chain.from_iterable(of_modules)}


@pytest.mark.parametrize("name", named(2))
def test_the_test_is_there(name: str) -> None:
    assert files_with(name)


@pytest.mark.parametrize("name", [*named(3), *named(4)])
def test_the_control_is_there(name: str) -> None:
    of_models = {config.name for config in SPEC.CONFIGS if config.expect != "pass"}
    if name.startswith("test_"):
        assert files_with(name)
    else:
        assert name in of_models or defined(name)


def test_the_models_table_has_each_configuration_and_its_verdict() -> None:
    text = (ROOT / "spec/README.md").read_text("utf-8")
    written = text.split(SPEC.BEGIN)[1].split(SPEC.END)[0].strip().splitlines()[2:]
    found = [tuple(line.split(" | ")[:3]) for line in written]
    assert found == [
        (f"| {config.module}", f"`{config.name}`", SPEC.verdict_of(config))
        for config in SPEC.CONFIGS
    ]
