"""The figures of growth and of renewals are of what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth, renewals

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


def test_renewals(capsys: pytest.CaptureFixture[str]) -> None:
    assert renewals.main(["sqlite", "--held", "20", "--rounds", "2"]) == 0
    head, *rounds, median = capsys.readouterr().out.splitlines()
    assert head == renewals.HEAD
    for number, line in enumerate(rounds, 1):
        store, held, turn, rate, client, server, failed = line.split()
        assert (store, held, turn, failed) == ("sqlite", "20", str(number), "0")
        assert int(rate.replace(",", "")) > 0
        assert int(client) >= int(server) == 0
    assert median.split()[:2] == ["sqlite", "median:"]


def test_a_cluster_of_one_node(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    few = ["--limit", "1", "--seconds", "0.5", "--json", str(file)]
    assert growth.main([growth.CLUSTER, *few]) == 0
    (point,) = json.loads(file.read_text("utf-8"))[growth.CLUSTER]["points"]
    assert (point["curve"], point["number"]) == ("nodes", 1)
    assert min(point["turns"], point["server"], point["client"]) > 0
