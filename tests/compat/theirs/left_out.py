"""pytest plugin: leaves out the tests that ``differences.txt`` lists for ``THEIRS``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("differences.txt")


def differences(library: str) -> Iterator[str]:
    """Yield the tests of a library that the list has."""
    chosen = False
    for line in LIST.read_text("utf-8").splitlines():
        if line.startswith("["):
            chosen = line.startswith(f"[{library}] ")
        elif chosen and line and not line.startswith("#"):
            yield line


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    listed = set(differences(os.environ["THEIRS"]))
    named = [(item, item.nodeid.partition("[")[0]) for item in items]
    left_out = [item for item, name in named if name in listed]
    # A list that is longer than it need be would hide that a test passes by now.
    if unknown := listed - {name for _, name in named}:
        raise pytest.UsageError(f"no such tests: {', '.join(sorted(unknown))}")
    items[:] = [item for item, name in named if name not in listed]
    config.hook.pytest_deselected(items=left_out)
