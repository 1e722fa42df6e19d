"""`rwlock doctor`: what is said of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.fix_cli import Store, every_layout


def test_a_file_is_examined(store: Store) -> None:
    store.leave_behind("order", "1", "x")
    answer = store.rwlock("doctor")
    assert answer.returncode == 0, answer.stderr
    assert "latency" in answer.stdout
    assert "notified" in answer.stdout


def test_json(store: Store) -> None:
    store.leave_behind("order", "1", "x")
    found = store.json("doctor")
    assert [finding["name"] for finding in found] == ["latency", "waiting"]
    assert {finding["rating"] for finding in found} == {"good"}
    assert set(found[0]) == {"name", "value", "meaning", "rating"}


def test_a_file_that_is_not_there(store: Store) -> None:
    answer = store.rwlock("doctor")
    assert answer.returncode == 2
    assert "does not exist" in answer.stderr


@pytest.mark.parametrize("store", ["files"], indirect=True)
def test_a_directory_that_is_not_there(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "mistyped"
    answer = store.rwlock("ls", "--url", f"{place.as_uri()}?create=yes")
    assert answer.returncode == 2
    assert "does not exist" in answer.stderr
    assert not place.exists()


@pytest.mark.parametrize("store", ["files"], indirect=True)
def test_without_sync(store: Store) -> None:
    answer = store.rwlock("doctor", "--url", f"{store.url}?sync=no")
    assert answer.returncode == 1
    assert "after a power cut" in answer.stdout


@every_layout
def test_a_store_is_examined_whole(store: Store) -> None:
    store.leave_behind("order", "1", "x")
    found = store.json("doctor")
    names = ["latency", "waiting"]
    if store.url.startswith("cassandra:"):
        names += ["version", "paxos", "replicas", "layout", "memory", "commit log"]
    if store.url.startswith("file:"):
        names += ["file system", "shared", "sync"]
    if store.url.startswith("oracle:"):
        names += ["server", "tables", "clock"]
    assert [finding["name"] for finding in found] == names
    assert not any(finding["rating"] == "bad" for finding in found)
    told = store.rwlock("doctor")
    assert (told.returncode, told.stderr) == (0, "")
    assert all(finding["meaning"] for finding in found)
