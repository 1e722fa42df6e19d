"""The backends of `examples/`: public names only, and the whole conformance suite."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import pytest

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import (
    ConformanceSuite,
    Harness,
    StoreLocation,
)
from tests.examples.fix_site import EXAMPLES

BACKENDS = ("jsonfile", "kvstore")
PUBLIC = {"aiorwlock_remote", "aiorwlock_remote.cas", "aiorwlock_remote.ports"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_uvloop("their drivers are those of asyncio, or block"),
    pytest.mark.in_turn("the bridge to trio is the library's own"),
]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_imports_public_modules_only(name: str) -> None:
    """So a person who has only the documentation can write one."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text("utf-8"))
    imported = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("aiorwlock_remote")
    }
    assert imported <= PUBLIC
    text = ast.unparse(tree)
    assert "import aiorwlock_remote." not in text


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The backends with their entry points, as pip would put them there."""
    place = tmp_path_factory.mktemp("site")
    for name in BACKENDS:
        shutil.copy(EXAMPLES / f"{name}.py", place)
        info = place / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
        entry = f"[aiorwlock_remote.backends]\n{name} = {name}:open_store\n"
        (info / "entry_points.txt").write_text(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # for other processes
        yield


@pytest.fixture(scope="module")
def kvstore_server() -> Iterator[None]:
    """The server of the example, as a program of its own."""
    program = [sys.executable, str(EXAMPLES / "kvstore_server.py"), "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        KvStoreHarness.port = int(server.stdout.readline())
        yield
        server.terminate()


class JsonFileHarness(Harness):
    """A file for each test."""

    capabilities = Capability.MANY_PROCESSES | Capability.OFF_LOOP_RENEWAL

    def fresh(self, folder: Path) -> StoreLocation:
        return StoreLocation(f"jsonfile:///{folder}/{uuid4().hex}.json")


@pytest.mark.usefixtures("site_packages")
class TestJsonFile(ConformanceSuite):
    """``jsonfile:///``: steps under a lock."""

    harness = JsonFileHarness()


class KvStoreHarness(Harness):
    """A prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.HINTS
    )
    answers_in = 0.5
    port: ClassVar[int]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        # All processes have one clock.
        url = f"kvstore://127.0.0.1:{self.port}?clock_skew=0"
        return StoreLocation(url, f"{uuid4().hex}:")


@pytest.mark.usefixtures("site_packages", "kvstore_server")
class TestKvStore(ConformanceSuite):
    """``kvstore://``: steps by swaps."""

    harness = KvStoreHarness()
