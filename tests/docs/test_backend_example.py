"""The backend that the documentation shows is one: it passes the conformance suite."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import (
    ConformanceSuite,
    Harness,
    StoreLocation,
)

MODULE = Path(__file__).parents[2] / "docs" / "howto" / "jsonfile.py"
ENTRY_POINTS = "[aiorwlock_remote.backends]\njsonfile = jsonfile:open_store\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One loop will do: the loops are not what is in question here."""
    return ("asyncio", {})


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The module with its entry point, as pip would put it there."""
    place = tmp_path_factory.mktemp("site")
    shutil.copy(MODULE, place)
    info = place / "jsonfile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jsonfile\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # for other processes
        yield


class JsonFiles(Harness):
    """As in the documentation."""

    capabilities: ClassVar[Capability] = (
        Capability.MANY_PROCESSES | Capability.OFF_LOOP_RENEWAL
    )

    def fresh(self, folder: Path) -> StoreLocation:
        return StoreLocation(f"jsonfile:///{folder}/{uuid4().hex}.json")


class TestJsonFile(ConformanceSuite):
    """``jsonfile:///``."""

    harness = JsonFiles()
