"""`rwlock doctor`: what is said of a store that needs no server."""

from __future__ import annotations

from tests.cli.fix_cli import Store


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
