"""What somebody put in the place of our files: neither followed, nor waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aiorwlock_remote import BadRecord
from tests.backends.files.one_resource import ORDER, ResourceClient

OURS = "order,42.doorman", ".changes", ".rwlock", ".boot"
HUGE = 2**33


def link_away(path: Path) -> None:
    victim = path.parent.with_name("victim")
    victim.write_text("precious\n")
    path.symlink_to(victim)


def link_nowhere(path: Path) -> None:
    path.symlink_to(path.parent.with_name("nobody"))


def huge(path: Path) -> None:
    """Eight GiB that take no space."""
    path.touch()
    os.truncate(path, HUGE)


PUT = link_away, link_nowhere, os.mkfifo, os.mkdir, huge


@pytest.mark.parametrize("put", PUT)
@pytest.mark.parametrize("name", OURS)
def test_in_the_place_of_ours(
    tmp_path: Path, name: str, put: Callable[[Path], object]
) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    ResourceClient(folder).take("first")
    (folder / name).unlink()
    put(folder / name)
    with pytest.raises(BadRecord):
        ResourceClient(folder).take("second")
    if name == OURS[0]:
        with pytest.raises(BadRecord):
            ResourceClient(folder).look()
        ResourceClient(folder).connection.forget(0.0)
    assert {path.name for path in tmp_path.iterdir()} <= {"locks", "victim"}
    if put is link_away:
        assert (tmp_path / "victim").read_text() == "precious\n"


def test_the_others_go_on(tmp_path: Path) -> None:
    """They are listed, and can be had."""
    client = ResourceClient(tmp_path)
    client.take("ours")
    link_away(tmp_path / "order,3.doorman")
    os.mkfifo(tmp_path / "order,4.doorman")
    assert [seen.resource for seen in client.scan()] == [ORDER]
