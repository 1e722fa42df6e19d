"""The synchronous examples, under the servers that people run them on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aiorwlock_remote.sync import connect
from tests.examples.fix_site import EXAMPLES, environment
from tests.servers.process import free_port, takes_connections, until
from tests.servers.redis import RedisServer
from tests.servers.store_url import STORES, store_url

pytestmark = pytest.mark.slow

REQUESTS = 24


@pytest.fixture(params=STORES)
def locks_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@contextmanager
def running(folder: Path, *command: str, **env: str) -> Iterator[Path]:
    """Run a module of Python until the block ends; its log has no traceback."""
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=EXAMPLES,
            env=environment(folder, **env),
            stdout=out,
            stderr=out,
        )
    try:
        yield log
        assert server.poll() is None, log.read_text()
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise
    assert "Traceback" not in log.read_text(), log.read_text()


def post(url: str) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, method="POST")  # noqa: S310 - of this machine
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def all_free(url: str) -> bool:
    with connect(url) as locks:
        return not list(locks.list())


def gunicorn(port: int, application: str, *options: str) -> list[str]:
    bind = f"127.0.0.1:{port}"
    # Its control socket has one path for all masters of a user.
    usual = ["gunicorn", "--bind", bind, "--workers", "3", "--no-control-socket"]
    return [*usual, *options, application]


def test_flask_under_gunicorn(locks_url: str, tmp_path: Path) -> None:
    """The application is loaded before the workers fork, with its connection."""
    pay_orders(locks_url, tmp_path, "--threads", "4")


@pytest.mark.parametrize("locks_url", ["redis"], indirect=True)
def test_flask_under_gunicorn_with_gevent(locks_url: str, tmp_path: Path) -> None:
    """Its workers replace threads by greenlets after the application was loaded."""
    pay_orders(locks_url, tmp_path, "--worker-class", "gevent")


def pay_orders(locks_url: str, tmp_path: Path, *workers: str) -> None:
    ledger = tmp_path / "ledger.txt"
    ledger.write_text("0")
    port = free_port()
    command = gunicorn(port, "flask_app:app", "--preload", *workers)
    env = {"LOCKS_URL": locks_url, "LEDGER": str(ledger)}
    with running(tmp_path, *command, **env) as log:
        until(lambda: takes_connections("127.0.0.1", port), f"{log} serves", 30)
        urls = [f"http://127.0.0.1:{port}/orders/7/pay"] * REQUESTS
        answers = list[tuple[int, dict[str, object]]]()

        def two_workers_have_answered() -> bool:
            # The first one to be up may answer all that come before the others are.
            answers.extend(pool.map(post, urls))
            return len({answer["process"] for _, answer in answers}) > 1

        with ThreadPoolExecutor(8) as pool:
            until(two_workers_have_answered, "several workers answer", 60)
    assert {status for status, _ in answers} == {200}
    assert ledger.read_text() == str(len(answers))
    assert len({answer["fence"] for _, answer in answers}) == len(answers)
    until(lambda: all_free(locks_url), "all locks are free")


def test_django_views(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf.txt"
    shelf.write_text("5")
    port = free_port()
    command = gunicorn(port, "django_sync:application", "--threads", "4")
    with running(tmp_path, *command, SHELF=str(shelf)) as log:
        until(lambda: takes_connections("127.0.0.1", port), f"{log} serves", 30)
        urls = [f"http://127.0.0.1:{port}/books/1/lend"] * 9
        with ThreadPoolExecutor(9) as pool:
            statuses = sorted(status for status, _ in pool.map(post, urls))
    assert statuses == [200] * 5 + [409] * 4
    assert shelf.read_text() == "0"


def test_celery_with_forked_workers(locks_url: str, tmp_path: Path) -> None:
    run_tasks(locks_url, tmp_path, "prefork")


@pytest.mark.parametrize("locks_url", ["redis"], indirect=True)
def test_celery_with_threads(locks_url: str, tmp_path: Path) -> None:
    run_tasks(locks_url, tmp_path, "threads")


@pytest.mark.parametrize("locks_url", ["redis"], indirect=True)
def test_celery_ends_a_task_that_waits_too_long(locks_url: str, tmp_path: Path) -> None:
    """``soft_time_limit`` raises in the main thread of a forked worker, which waits."""
    results = tmp_path / "results"
    results.mkdir()
    env = task_environment(locks_url, tmp_path) | {"RESULTS": results.as_uri()}
    work = ("-A", "celery_task", "worker", "-c", "1", "-P", "prefork")

    def ended() -> bool:
        texts = [result.read_text() for result in results.iterdir()]
        return any("SoftTimeLimitExceeded" in text for text in texts)

    with connect(locks_url) as locks:
        order = locks.mutex("order", 7)
        with order.acquire():
            send("pay.apply_async((7,), soft_time_limit=0.5)", tmp_path, env)
            with running(tmp_path, "celery", *work, "--loglevel=CRITICAL", **env):
                until(lambda: bool(order.info().queue), "the task waits", 60)
                until(ended, "the task was ended", 60)
                until(lambda: not order.info().queue, "and waits no longer", 60)
                # The worker goes on.
                send("pay.delay(8)", tmp_path, env)
                ledger = Path(env["LEDGER"])
                until(lambda: ledger.read_text() == "1", "the next one is done", 60)
    assert ledger.read_text() == "1"


@pytest.mark.parametrize("locks_url", ["postgresql"], indirect=True)
def test_celery_with_gevent(locks_url: str, tmp_path: Path) -> None:
    run_tasks(locks_url, tmp_path, "gevent")


def task_environment(locks_url: str, tmp_path: Path) -> dict[str, str]:
    ledger, queues = tmp_path / "ledger.txt", tmp_path / "queues"
    ledger.write_text("0")
    queues.mkdir()
    return {
        "BROKER": "filesystem://",
        "QUEUES": str(queues),
        "LOCKS_URL": locks_url,
        "LEDGER": str(ledger),
    }


def send(tasks: str, tmp_path: Path, env: dict[str, str]) -> None:
    """Send tasks of ``celery_task``, without a worker of their own."""
    subprocess.run(
        [sys.executable, "-c", f"from celery_task import pay\n{tasks}\n"],
        cwd=EXAMPLES,
        env=environment(tmp_path, **env),
        check=True,
        timeout=60,
    )


def run_tasks(locks_url: str, tmp_path: Path, pool: str) -> None:
    env = task_environment(locks_url, tmp_path)
    ledger = Path(env["LEDGER"])
    send("for _ in range(24): pay.delay(7)", tmp_path, env)
    command = ("celery", "-A", "celery_task", "worker", "-c", "4", "-P", pool)
    with running(tmp_path, *command, **env) as log:
        until(lambda: ledger.read_text() == "24", log.read_text(), 60, every=0.1)
        time.sleep(0.2)
    assert ledger.read_text() == "24"
    until(lambda: all_free(locks_url), "all locks are free")


def test_celery_beat_once_a_night(fresh_redis: RedisServer, tmp_path: Path) -> None:
    """``celery_beat.py``: two beats, and a worker with two forked children."""
    sent, queues = tmp_path / "sent.txt", tmp_path / "queues"
    sent.touch()
    queues.mkdir()
    env = {
        "BROKER": "filesystem://",
        "QUEUES": str(queues),
        "LOCKS_URL": fresh_redis.url,
        "SENT": str(sent),
        "EVERY": "0.3",
    }
    with ExitStack() as stack:
        for number in range(2):
            folder = tmp_path / f"beat{number}"
            folder.mkdir()
            beat = ("celery", "-A", "celery_beat", "beat", "-s", str(folder / "db"))
            stack.enter_context(running(folder, *beat, "--pidfile=", **env))
        work = ("celery", "-A", "celery_beat", "worker", "-c", "2", "-P", "prefork")
        log = stack.enter_context(running(tmp_path, *work, **env))
        until(lambda: sent.read_text().count("\n") >= 10, str(log), 60, every=0.1)
    said = sorted(sent.read_text().split("\n")[:10])
    assert said == ["sent"] + ["sent before"] * 9


def test_a_script_that_runs_already(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, EXAMPLES / "sync_script.py"],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )

    url = f"sqlite:///{tmp_path}/locks.db"
    with connect(url) as locks:
        with locks.mutex("report", "daily").acquire():
            output, _ = start().communicate(timeout=30)
            assert output.startswith("already running: write ")
        output, _ = start().communicate(timeout=30)
        assert [line.partition(" of ")[0] for line in output.splitlines()] == [
            f"step {number}" for number in range(5)
        ]
