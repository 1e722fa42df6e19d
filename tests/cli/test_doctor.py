"""`rwlock doctor`: what is said of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aiorwlock_remote.cli.main import main
from aiorwlock_remote.embedded.watcher import ChangeWatcher
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


def waiting(store: Store, url: str) -> str:
    """What is said of how waiters learn that their turn has come."""
    found = json.loads(store.rwlock("doctor", "--json", "--url", url).stdout)
    (finding,) = [one for one in found if one["name"] == "waiting"]
    return f"{finding['value']}: {finding['meaning']}"


@pytest.mark.parametrize("store", ["files"], indirect=True)
def test_the_intervals_are_those_in_use(store: Store, tmp_path: Path) -> None:
    """A shared directory is looked at less often, and tells nobody."""
    store.leave_behind("order", "1", "x")
    looks = "woken at once; cheap looks every 2 to 20 ms in case no message came"
    assert waiting(store, store.url) == f"notified: {looks}"
    place = tmp_path / "shared"
    place.mkdir()
    url = f"{place.as_uri()}?shared=yes"
    assert waiting(store, url) == "polls: cheap looks every 20 to 250 ms"


@every_layout
def test_readers_without_a_doorman_are_reported(store: Store) -> None:
    """Ours may be among them: nobody gets in until they are gone."""
    store.leave_behind("order", "3", "x")
    assert store.foreigner.take(("order", 1), "readers")
    assert store.foreigner.take(("order", 2), "other")
    found = {finding["name"]: finding for finding in store.json("doctor")}
    finding = found["foreign records"]
    assert finding["rating"] == "note"
    assert finding["value"].startswith("2 without an end, oldest ")
    assert finding["value"].endswith(", 1 with `readers`")
    assert "rwlock break" in finding["meaning"]


@every_layout
def test_a_store_is_examined_whole(store: Store) -> None:
    store.leave_behind("order", "1", "x")
    found = store.json("doctor")
    names = ["latency", "waiting"]
    if store.url.startswith("cassandra:"):
        names += ["version", "paxos", "replicas", "layout", "memory", "commit log"]
    if store.url.startswith("etcd:"):
        address = store.url.removeprefix("etcd://").partition("/")[0]
        names += [f"member {address}", "endpoints", "alarms", "clock", "login"]
    if store.url.startswith("file:"):
        names += ["file system", "shared", "sync"]
    if store.url.startswith("oracle:"):
        names += ["server", "tables", "clock"]
    assert [finding["name"] for finding in found] == names
    assert not any(finding["rating"] == "bad" for finding in found)
    output = store.rwlock("doctor")
    assert (output.returncode, output.stderr) == (0, "")
    assert all(finding["meaning"] for finding in found)


@every_layout
def test_a_lock_is_handed_over(store: Store) -> None:
    """By the statistics of the client that waited: what woke it, and what it sent."""
    store.leave_behind("order", "1", "x")
    before = store.json("doctor")
    found = {finding["name"]: finding for finding in store.json("doctor", "--try")}
    assert list(found) == [
        *(finding["name"] for finding in before),
        *("hand-over", "wake-ups", "requests"),
    ]
    assert float(found["hand-over"]["value"].removesuffix(" ms")) > 0
    woken = found["wake-ups"]["value"]
    notified = found["waiting"]["value"] == "notified"
    assert ("by message" in woken) or (not notified and "by poll" in woken)
    sent = int(found["requests"]["value"].partition(" sent")[0])
    assert sent >= 3  # refused, granted, released
    assert found["requests"]["value"].endswith(" 0 retried")
    # Nothing of it is held afterwards.
    assert [seen["resource"] for seen in store.json("ls")] == ["order/1"]


def test_a_message_that_does_not_come_is_noted(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.leave_behind("order", "1", "x")

    def sees_nothing(watcher: ChangeWatcher) -> None:
        del watcher

    monkeypatch.setattr(ChangeWatcher, "_run", sees_nothing)
    assert main(["doctor", "--try", "--url", store.url]) == 0
    output = capsys.readouterr().out
    (line,) = [line for line in output.splitlines() if "wake-ups" in line]
    assert line.startswith("note")
    assert "no message of the store came" in line
