"""Servers of other suites: fetched once, whole, and run by their own libraries."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers import roots
from tests.servers.roots import Root, root_of


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(roots, "cache_folder", lambda: folder)
    return folder


@pytest.mark.slow
def test_a_package_runs_on_its_own_libraries(own_cache: Path) -> None:
    root = root_of("sid", "hello")
    shown = [root.program("hello"), "--greeting=here"]
    done = subprocess.run(shown, capture_output=True, text=True, check=True)
    assert done.stdout == "here\n"
    assert root.path == own_cache / "sid-hello"
    assert root.path.stat().st_mode & stat.S_IXOTH
    wrapper = Path(root.program("hello")).read_text()
    loaded = subprocess.run(
        ["sh", "-c", wrapper.replace("--library-path", "--list --library-path")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"libc.so.6 => {root.path}/usr/lib" in loaded.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_failure_names_the_package_and_the_command() -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)no-such of sid .*apt-get .* no-such\n.*E: "
    ):
        root_of("sid", "no-such")


def test_many_ask_and_one_fetches(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(suite: str, packages: Sequence[str], folder: Path) -> None:
        fetched.append((suite, *packages))
        folder.mkdir()

    fetched: list[tuple[str, ...]] = []
    monkeypatch.setattr(roots, "_fetch", fetch)
    asking = [threading.Thread(target=root_of, args=("sid", "one")) for _ in range(5)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert fetched == [("sid", "one")]
    assert root_of("sid", "two") == Root(own_cache / "sid-two")
    assert fetched[1:] == [("sid", "two")]


def test_one_that_was_killed_while_it_fetched_leaves_no_half(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_suite: str, _packages: Sequence[str], apt: Path) -> list[Path]:
        (apt.parent / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(roots, "_downloaded", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            root_of("sid", "one")
        assert not (own_cache / "sid-one").exists()


def test_links_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "etc/java").mkdir(parents=True)
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/conf").symlink_to("/etc/java")
    (tmp_path / "usr/lib/near").symlink_to("conf")
    roots._make_links_relative(tmp_path)
    assert (tmp_path / "usr/lib/conf").resolve() == tmp_path / "etc/java"
    assert (tmp_path / "usr/lib/near").readlink() == Path("conf")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no mysqld: delete that folder"):
        Root(tmp_path).program("mysqld")


def test_root_s_folder_is_open_to_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Servers run as other users, who cannot enter root's home."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert roots.cache_folder().parent == Path("/var/cache")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert roots.cache_folder().parent == tmp_path
