"""Servers that ``SERVERS`` chooses are started, and only their tests are run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import cassandra, chosen, mariadb, postgresql, redis
from tests.servers.redis import RedisServer
from tests.servers.roots import Root


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where roots would be, with the programs in them."""

    def root_of(suite: str, *packages: str) -> Root:
        return Root(tmp_path / "-".join((suite, *packages)))

    monkeypatch.setattr(chosen, "root_of", root_of)
    return tmp_path


def program_in(root: Path, name: str) -> Path:
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    program = root / "usr/bin" / name
    program.write_text("#!/bin/sh\necho it is 9.9\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("kind", "package", "name", "started"),
    [
        ("redis", "valkey-server", "valkey-server", redis.redis_program),
        ("redis", "redis-server", "redis-server", redis.redis_program),
        ("mariadb", "mariadb-server", "mariadbd", lambda: mariadb._program("mariadbd")),
        (
            "postgresql",
            "postgresql-18",
            "initdb",
            lambda: postgresql._program("initdb"),
        ),
        ("java", "openjdk-21-jre-headless", "java", cassandra._java),
    ],
)
def test_the_chosen_one_is_started(
    unpacked: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    package: str,
    name: str,
    started: Callable[[], str],
) -> None:
    program = program_in(unpacked / f"sid-{package}", name)
    monkeypatch.setenv(chosen.SERVERS, f"{kind}=sid/{package}")
    assert started() == str(program)
    monkeypatch.delenv(chosen.SERVERS)
    assert not started().startswith(str(unpacked))


def test_versions_are_read_from_the_programs(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_in(unpacked / "sid-valkey-server", "valkey-server")
    program_in(unpacked / "trixie-openjdk-21-jre-headless", "java")
    choice = "redis=sid/valkey-server java=trixie/openjdk-21-jre-headless"
    monkeypatch.setenv(chosen.SERVERS, choice)
    assert list(chosen.versions()) == [
        "redis: it is 9.9 (sid-valkey-server)",
        "java: it is 9.9 (trixie-openjdk-21-jre-headless)",
    ]
    monkeypatch.delenv(chosen.SERVERS)
    assert list(chosen.versions()) == []


@pytest.mark.parametrize("word", ["redis", "redis=sid", "redis=sid/", "rediss=sid/x"])
def test_an_invalid_choice_of_servers_is_refused(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(chosen.SERVERS, word)
    with pytest.raises(pytest.UsageError, match=rf"{word} is not KIND=SUITE/PACKAGE"):
        list(chosen.versions())


@pytest.mark.usefixtures("redis_server")
def test_only_tests_of_the_chosen_are_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(chosen.SERVERS, raising=False)
    assert not chosen.is_left_out(request.node)
    monkeypatch.setenv(chosen.SERVERS, "redis=sid/valkey-server")
    assert not chosen.is_left_out(request.node)
    monkeypatch.setenv(chosen.SERVERS, "mariadb=trixie/mariadb-server")
    assert chosen.is_left_out(request.node)


def test_the_shared_server_is_the_chosen_one(redis_server: RedisServer) -> None:
    """Run by each round of `nox -s servers_of_today`, too."""
    package = chosen.package("redis")
    info = redis_server.ask("INFO", "server").decode()
    assert ("valkey_version:" in info) == (package == "valkey-server")
