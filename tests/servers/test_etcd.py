"""The etcd members of the tests keep their promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.etcd import etcdctl, is_healthy, prepare
from tests.servers.fix_etcd import StartEtcd, StartEtcdRing
from tests.servers.process import IP, takes_connections, until
from tests.servers.shared import shared

pytestmark = pytest.mark.slow


def test_a_shared_member_ends_with_its_last_user(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with shared(folder, prepare) as facts:
        port: int = facts["port"]
        until(lambda: is_healthy(f"{IP}:{port}"), "it answers")
        with shared(folder, prepare) as again:
            assert again == facts
        assert etcdctl(f"{IP}:{port}", "put", "key", "value") == "OK\n"
    until(lambda: not takes_connections(IP, port), "it is gone")


def test_a_member_keeps_its_keys(start_etcd: StartEtcd) -> None:
    member = start_etcd()
    member.ctl("put", "key", "value")
    member.restart()
    assert member.ctl("get", "key", "--print-value-only") == "value\n"
    assert member.is_leader


def test_another_member_leads(start_etcd_ring: StartEtcdRing) -> None:
    ring = start_etcd_ring()
    first = ring.leader
    first.kill()
    second = ring.leader
    assert second is not first
    second.ctl("put", "key", "value")
    first.start()
    assert first.ctl("get", "key", "--print-value-only") == "value\n"
