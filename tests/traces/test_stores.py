"""Short recordings of real stores are behaviours of the core; broken ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.fix_cassandra import Keyspace
from tests.servers.fix_redis import StartRedis
from tests.servers.plain_cassandra import make_ours
from tests.traces.__main__ import MODELLED, SAMPLE
from tests.traces.abstraction import sample
from tests.traces.faults import IN_LUA
from tests.traces.recording import Recording, record
from tests.traces.tla import validate

pytestmark = pytest.mark.slow
LEAST = 200
"""Commands in a recording."""


def _is_of_the_core(recording: Recording) -> None:
    assert recording.requests > LEAST
    assert recording.difference() is None
    kinds = {
        type(request.command).__name__
        for history in recording.histories.values()
        for request in history
    }
    assert {"Acquire", "Release", "Withdraw"} <= kinds


def test_redis(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis()
    recording = record(server.url, tmp_path / "run", port=server.port)
    _is_of_the_core(recording)
    assert recording.replies


def test_a_broken_script_is_found(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis()
    (fault,) = IN_LUA
    kinds = ("reader", "reader", "writer")
    plan = {"fault": fault, "names": 1, "kinds": kinds}
    recording = record(server.url, tmp_path / "run", port=server.port, **plan)
    difference = recording.difference()
    assert difference is not None
    assert "both0" in difference.request.resource


def test_sqlite(tmp_path: Path) -> None:
    _is_of_the_core(record(f"sqlite:///{tmp_path / 'locks.db'}", tmp_path / "run"))


def test_a_broken_core_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    recording = record(url, tmp_path / "run", fault="fences_do_not_rise")
    difference = recording.difference()
    assert difference is not None
    assert difference.what == "another record is stored"


def test_postgresql(tables: str, tmp_path: Path) -> None:
    _is_of_the_core(record(tables, tmp_path / "run"))


def test_cassandra(keyspace: Keyspace, tmp_path: Path) -> None:
    make_ours(keyspace)
    _is_of_the_core(record(keyspace.url, tmp_path / "run"))


def test_etcd(etcd_url: str, tmp_path: Path) -> None:
    _is_of_the_core(record(etcd_url, tmp_path / "run"))


def test_the_model_has_what_redis_did(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis()
    recording = record(server.url, tmp_path / "run", port=server.port, **MODELLED)
    assert recording.difference() is None
    histories = [
        sample(history, recording.clients, SAMPLE)
        for history in recording.histories.values()
    ]
    verdict = validate(histories)
    assert not verdict.violated
    assert verdict.reached == tuple(map(len, histories))
    assert sum(verdict.reached) > LEAST / 2
