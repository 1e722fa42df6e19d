"""What the tests of the command line share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.fix_cli import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A fresh file of locks."""
    return Store(tmp_path)
