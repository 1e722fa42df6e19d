"""The backends of `examples/`: public names only, and the whole conformance suite."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
WATCHED = "watched_kvstore", Path(__file__).parent
PUBLIC = {"aiorwlock_remote", "aiorwlock_remote.cas", "aiorwlock_remote.ports"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_uvloop("their drivers are those of asyncio, or block"),
    pytest.mark.in_turn("the bridge to trio is the library's own"),
]


@pytest.mark.parametrize(
    ("name", "folder"), [*((name, EXAMPLES) for name in BACKENDS), WATCHED]
)
def test_a_backend_imports_public_modules_only(name: str, folder: Path) -> None:
    """So a person who has only the documentation can write one."""
    tree = ast.parse((folder / f"{name}.py").read_text("utf-8"))
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
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The backends with their entry points, as pip would put them there."""
    place = tmp_path_factory.mktemp("site")
    shutil.copy(EXAMPLES / "kvstore_server.py", place)
    for name, folder in (*((name, EXAMPLES) for name in BACKENDS), WATCHED):
        shutil.copy(folder / f"{name}.py", place)
        info = place / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
        scheme = name.replace("_", "-")
        entry = f"[aiorwlock_remote.backends]\n{scheme} = {name}:open_store\n"
        (info / "entry_points.txt").write_text(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # for other processes
        yield place


@contextmanager
def serving(harness: type[KvStoreHarness], path: Path) -> Iterator[None]:
    """A server as a program of its own."""
    program = [sys.executable, str(path), "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        harness.port = int(server.stdout.readline())
        yield
        server.terminate()


@pytest.fixture(scope="module")
def kvstore_server(site_packages: Path) -> Iterator[None]:
    with serving(KvStoreHarness, site_packages / "kvstore_server.py"):
        yield


@pytest.fixture(scope="module")
def watched_server(site_packages: Path) -> Iterator[None]:
    with serving(WatchedKvStoreHarness, site_packages / "watched_kvstore.py"):
        yield


class JsonFileHarness(Harness):
    """A file for each test."""

    capabilities = Capability.MANY_PROCESSES | Capability.OFF_LOOP_RENEWAL

    def fresh(self, folder: Path) -> StoreLocation:
        return StoreLocation(f"jsonfile:///{folder}/{uuid4().hex}.json")


@pytest.mark.share(0, 2, "`nox -s all_turns` has the others")
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
    scheme: ClassVar[str] = "kvstore"
    port: ClassVar[int]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        # All processes have one clock.
        url = f"{self.scheme}://127.0.0.1:{self.port}?clock_skew=0"
        return StoreLocation(url, f"{uuid4().hex}:")


@pytest.mark.share(0, 2, "the watched one has the others")
@pytest.mark.usefixtures("site_packages", "kvstore_server")
class TestKvStore(ConformanceSuite):
    """``kvstore://``: steps by swaps."""

    harness = KvStoreHarness()


class WatchedKvStoreHarness(KvStoreHarness):
    """The same, with watches and fences by revisions."""

    capabilities = KvStoreHarness.capabilities | Capability.NOTIFIES
    counts_fences = True
    scheme = "watched-kvstore"


@pytest.mark.share(1, 2, "the unwatched one has the others")
@pytest.mark.usefixtures("site_packages", "watched_server")
class TestWatchedKvStore(ConformanceSuite):
    """What a store such as etcd needs, by public names only."""

    harness = WatchedKvStoreHarness()
