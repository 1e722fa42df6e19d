"""`rwlock demo`: what it shows happens, what it judges can fail, nothing stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from tests.cli.fix_cli import (
    ROOT,
    RWLOCK,
    TIMEOUT,
    Store,
    children,
    environment,
    eventually,
    processes,
)
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = "exclusion 0, fence order 0, isolation 0, money 0, torn reads 0, history 0"


def demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it with ``folder`` for temporary files."""
    return subprocess.run(
        [*RWLOCK, "demo", *words],
        cwd=ROOT,
        env=environment(TMPDIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def number(name: str, text: str) -> int:
    """A number of the verdict."""
    found = re.search(rf"^  {name} +(\d+)", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1])


@pytest.mark.parametrize(
    "words",
    [["--seconds", "3"], ["--seconds", "1", "--loop", "trio", "--processes", "3"]],
    ids=" ".join,
)
def test_the_locks_hold(tmp_path: Path, words: list[str]) -> None:
    done = demo(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert number("violations", done.stdout) == 0
    assert KINDS in done.stdout
    assert number("grants", done.stdout) > 10
    assert number("stale writes refused", done.stdout) >= 1
    for pattern in (
        r"w2 stopped \(SIGSTOP\) after its read: it holds \w+, fence …\d+",
        r"the lease of w2 ran out; w\d entered \w+ \d+ ms later",
        r"refused that write; w2 was told LockLost \(expired\)",
        r"w1 killed \(SIGKILL\): it holds north, fence …\d+",
        r"the lease of w1 ran out; w\d entered north \d+ ms later",
        r"killed holder +w1 held north; its lease ran out, w\d entered \d+ ms later",
        r"stopped holder +w2 held \w+; late write refused, told LockLost \(expired\)",
        r"waits +p50 \d+ ms, p99 \d+ ms",
    ):
        assert re.search(pattern, done.stdout), pattern
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_on_a_store_of_ones_own(store: Store, tmp_path: Path) -> None:
    done = demo(tmp_path, "--seconds", "1", "--url", store.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert store.json("ls") == []


def test_on_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    url = f"{redis_server.url.removesuffix('/0')}/3"  # nobody else's database
    done = demo(tmp_path, "--seconds", "2", "--url", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert KINDS in done.stdout
    assert number("grants", done.stdout) > 10
    assert number("stale writes refused", done.stdout) >= 1
    for pattern in (
        r"refused that write; w2 was told LockLost \(expired\)",
        r"the lease of w1 ran out; w\d entered north \d+ ms later",
    ):
        assert re.search(pattern, done.stdout), pattern


def test_no_key_is_left_on_redis(fresh_redis: RedisServer, tmp_path: Path) -> None:
    done = demo(tmp_path, "--seconds", "1", "--url", fresh_redis.url)
    assert done.returncode == 0, done.stdout + done.stderr
    with redis.Redis.from_url(fresh_redis.url) as client:
        eventually(lambda: not any(b"rwlock-demo" in key for key in client.scan_iter()))


def test_its_words_are_explained(tmp_path: Path) -> None:
    done = demo(tmp_path, "--seconds", "1", "--processes", "3")
    legend = done.stdout.partition(" s  ")[0]
    for word in ("lease: ", "fence: ", "queue: 2W 1R", "waits: ", "p50", "p99"):
        assert word in legend
    _, _, counts = done.stdout.partition(f"{KINDS}\n")
    explained = [line.strip().partition(": ")[0] for line in counts.splitlines()]
    assert explained[:-1] == [kind.rpartition(" ")[0] for kind in KINDS.split(", ")]


def test_without_locks_violations_are_found_on_redis_as_well(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    url = f"{redis_server.url.removesuffix('/0')}/3"
    done = demo(tmp_path, "--broken", "--seconds", "1", "--url", url)
    assert done.returncode == 1
    assert done.stderr == ""
    assert number("violations", done.stdout) > 0


def test_without_locks_violations_are_found(tmp_path: Path) -> None:
    done = demo(tmp_path, "--broken", "--seconds", "1")
    assert done.returncode == 1
    assert done.stderr == ""
    assert number("violations", done.stdout) > 0
    for kind in ("exclusion", "fence order", "isolation", "money", "torn reads"):
        assert re.search(rf"{kind} [1-9]", done.stdout), kind
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def midway(
    folder: Path, *words: str, until: str = "stopped"
) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A demo at the moment when a worker is stopped and cannot end by itself."""
    with subprocess.Popen(
        [*RWLOCK, "demo", "--processes", "3", *words],
        cwd=ROOT,
        env=environment(TMPDIR=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for output in process.stdout:
            if until in output:
                break
        workers = children(process.pid)
        assert len(workers) == (3 if until == "stopped" else 2)
        yield process, workers


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(
    tmp_path: Path, end: signal.Signals
) -> None:
    with midway(tmp_path) as (process, workers):
        process.send_signal(end)
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + end
    assert err.startswith("rwlock: ")
    assert list(tmp_path.iterdir()) == []
    assert not workers & set(processes())


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_in_a_store_of_ones_own(
    store: Store, tmp_path: Path, end: signal.Signals
) -> None:
    """Not for a moment: no lease has to run out."""
    with midway(tmp_path, "--url", store.url) as (process, workers):
        for one in (*workers, process.pid):  # as a terminal does
            if end != signal.SIGTERM or one == process.pid:
                os.kill(one, end)
        _, err = process.communicate(timeout=TIMEOUT)
    assert store.json("ls") == []
    assert "nothing is left behind" in err
    assert not workers & set(processes())


def test_interrupted_it_says_what_it_leaves(store: Store, tmp_path: Path) -> None:
    """One was killed as the script has it: its lease may have to run out yet."""
    words = ("--url", store.url, "--seconds", "1")
    with midway(tmp_path, *words, until="w1 killed") as (process, _):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
    assert err == (
        "rwlock: SIGINT: all workers are ended, what w1 had ends by itself within"
        " seconds\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_killed_it_takes_its_workers_along(tmp_path: Path) -> None:
    with midway(tmp_path) as (process, workers):
        process.kill()
    eventually(lambda: not workers & set(processes()))


def test_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    with midway(tmp_path) as (process, workers):
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []
    assert not workers & set(processes())


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    done = demo(tmp_path, "--url", "sqlite:////no/such/folder/x.db")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_needs_nothing_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong module')\n")
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}];"
        "from aiorwlock_remote.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "demo", "--broken", "--seconds", "1"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == ""
