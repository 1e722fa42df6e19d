"""The figures of growth are of what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth

pytestmark = pytest.mark.slow


def test_ten_of_each(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    file.write_text(json.dumps({"other": {}}))
    more = ["--curves", "held", "clients", "tasks", "--limit", "10", "--seconds", "0.5"]
    assert growth.main(["sqlite", *more, "--json", str(file)]) == 0
    found = json.loads(file.read_text("utf-8"))
    assert list(found) == ["other", "sqlite"]
    held, clients, tasks = found["sqlite"]["points"]
    for one in (held, clients):
        assert (one["number"], one["lost"]) == (10, 0)
    assert tasks["turns"] > 0
    assert min(held["cycle"], tasks["cycle"]) > 0


def test_a_cluster_of_one_node(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    few = ["--limit", "1", "--seconds", "0.5", "--json", str(file)]
    assert growth.main([growth.CLUSTER, *few]) == 0
    (point,) = json.loads(file.read_text("utf-8"))[growth.CLUSTER]["points"]
    assert (point["curve"], point["number"]) == ("nodes", 1)
    assert min(point["turns"], point["server"], point["client"]) > 0
