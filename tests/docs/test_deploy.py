"""What docs/howto/deploy.md says of containers, as far as it can be tried."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from aiorwlock_remote import connect
from tests.docs.fix_blocks import blocks
from tests.servers.fix_redis import StartRedis
from tests.servers.process import IP, free_port
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/deploy.md").read_text("utf-8")
LEASE = 30


def files() -> list[dict[str, Any]]:
    return [
        yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"
    ]


COMPOSE, DEPLOYMENT, CRON = files()


def redis_options() -> dict[str, str]:
    program, *words = shlex.split(COMPOSE["services"]["redis"]["command"])
    assert program == "redis-server"
    names = [word.removeprefix("--") for word in words[::2]]
    return dict(zip(names, words[1::2], strict=True))


@pytest.fixture
def durable(start_redis: StartRedis) -> RedisServer:
    return start_redis(config=redis_options())


@pytest.mark.asyncio
async def test_a_redis_with_these_options_keeps_a_lock_when_it_is_killed(
    durable: RedisServer,
) -> None:
    assert durable.ask("CONFIG", "GET", "maxmemory-policy")[1] == b"noeviction"
    async with connect(durable.url) as locks:
        held = await locks.mutex("order", 42).acquire(reason="before the crash")
        held.detach()
    durable.restart()
    async with connect(durable.url) as locks:
        info = await locks.mutex("order", 42).info()
        assert [holder.reason for holder in info.holders] == ["before the crash"]


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None
    return int(found[1])


def test_the_services_refer_to_each_other() -> None:
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    app = services["app"]
    assert set(app["depends_on"]) <= set(services)
    assert f"//{next(iter(app['depends_on']))}/" in app["environment"]["LOCKS_URL"]
    (mount,) = services["redis"]["volumes"]
    assert mount.partition(":")[0] in volumes
    assert seconds(app["stop_grace_period"]) > LEASE
    assert app["hostname"]


def pod() -> dict[str, Any]:
    found: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
    return found


def test_the_grace_period_exceeds_pre_stop_and_the_servers_patience() -> None:
    (container,) = pod()["containers"]
    words = container["command"]
    patience = int(words[words.index("--timeout-graceful-shutdown") + 1])
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] >= before + patience
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels


def test_readiness_asks_the_store_and_liveness_does_not() -> None:
    (container,) = pod()["containers"]
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    (text,) = [b.text for b in blocks(PAGE) if "add_locks(app" in b.text]
    nobody = f"redis://{IP}:{free_port()}/0"
    app = application(text.replace("redis://localhost/0", nobody))
    with TestClient(app) as client:
        statuses = {
            probe: client.get(path).status_code for probe, path in paths.items()
        }
    assert statuses == {
        "startupProbe": 200,
        "livenessProbe": 200,
        "readinessProbe": 503,
    }
    assert container["readinessProbe"]["timeoutSeconds"] > 2


def application(text: str) -> Any:  # noqa: ANN401 - what the page makes
    namespace: dict[str, Any] = {}
    exec(compile(text, "deploy.md", "exec"), namespace)  # noqa: S102 - our own page
    return namespace["app"]


def test_the_cron_job_runs_once(tmp_path: Path) -> None:
    (container,) = CRON["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    words = [*container["command"]]
    assert words[-2:] == ["python", "report.py"]
    words[0], words[-2] = str(Path(sys.executable).with_name("rwlock")), sys.executable
    (tmp_path / "report.py").write_text("print('written')")
    environment = {"RWLOCK_URL": f"sqlite:///{tmp_path}/locks.db"}
    printed = [run(words, tmp_path, environment) for _ in range(2)]
    assert printed == ["written\n", ""]


def run(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    return subprocess.run(
        words, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(ROOT / "examples/worker.py")],
        env={"LOCKS_URL": f"sqlite:///{tmp_path}/locks.db"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        yield process
        process.kill()


@pytest.mark.asyncio
async def test_sigterm_releases_the_lock(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    async with connect(f"sqlite:///{tmp_path}/locks.db") as locks:
        lock = locks.mutex("job", "import")
        (holder,) = (await lock.info()).holders
        assert (holder.host, holder.pid) == (socket.gethostname(), worker.pid)
        worker.send_signal(signal.SIGTERM)
        printed, _ = worker.communicate(timeout=30)
        assert printed == "ended in order\n"
        assert worker.returncode == 0
        assert not await lock.locked()
