"""The Cassandra nodes of the tests keep their promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.cassandra import PAXOS
from tests.servers.cassandra_jars import jars
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import Keyspace, SharedNode
from tests.servers.process import until
from tests.servers.shared import shared

ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def test_jars_that_cannot_be_fetched_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no route to the repository\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):  # the second finds no half of a folder
        with pytest.raises(pytest.fail.Exception, match="no route to the repository"):
            jars()


def test_each_test_has_a_keyspace(keyspace: Keyspace) -> None:
    keyspace.visit.rows(f"CREATE TABLE {keyspace.name}.t (k int PRIMARY KEY)")
    insert = f"INSERT INTO {keyspace.name}.t (k) VALUES (1) IF NOT EXISTS"  # noqa: S608 - a name of ours
    assert keyspace.visit.rows(insert)[0].applied
    assert not keyspace.visit.rows(insert)[0].applied


SLEEPER = """
import sys, os
from pathlib import Path
from tests.servers.shared import shared
with shared(Path(sys.argv[1]), lambda _: (["sleep", "1000"], {"n": 1})) as facts:
    print(facts["pid"], flush=True)
    sys.stdin.readline()
"""


def user(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.fixture
def users(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    found = [user(tmp_path) for _ in range(4)]
    yield found
    for process in found:
        process.kill()
        process.communicate()


def test_shared_server_ends_with_the_last_user_however_it_ends(
    users: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    pids = {int(process.stdout.readline()) for process in users if process.stdout}
    assert len(pids) == 1
    (pid,) = pids
    users[0].kill()
    users[1].communicate("\n")
    users[2].kill()
    users[2].wait()
    assert not gone(pid)
    with shared(tmp_path, lambda _: (["false"], {})) as facts:
        assert facts == {"pid": pid, "n": 1}
    users[3].kill()
    until(lambda: gone(pid), "the shared server has ended")
    until(lambda: not (tmp_path / "users").exists(), "it can be started again")
    with shared(tmp_path, lambda _: (["sleep", "1000"], {})) as facts:
        assert facts["pid"] != pid
    until(lambda: gone(facts["pid"]), "so has the second one")


def test_shared_server_is_started_again_if_its_starter_died(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "users")  # as far as it had come
    with shared(tmp_path, lambda _: (["sleep", "1000"], {"n": 2})) as facts:
        assert facts["n"] == 2
    until(lambda: gone(facts["pid"]), "the shared server has ended")


def test_shared_node_is_one(cassandra_node: SharedNode) -> None:
    command = Path(f"/proc/{cassandra_node.pid}/cmdline").read_text().split("\0")
    assert command[-2] == "org.apache.cassandra.service.CassandraDaemon"


def test_nodes_speak_the_paxos_that_was_asked_for(cassandra_visit: Visit) -> None:
    settings = cassandra_visit.rows("SELECT name, value FROM system_views.settings")
    (variant,) = (row.value for row in settings if row.name == "paxos_variant")
    assert variant == os.environ.get(PAXOS, "v2")
