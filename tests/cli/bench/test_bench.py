"""`rwlock bench`: what it prints, and that it leaves nothing held."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from aiorwlock_remote.cli.bench import TYPE
from tests.cli.fix_cli import (
    TIMEOUT,
    Store,
    children,
    eventually,
    every_layout,
    processes,
)
from tests.servers.process import IP, free_port
from tests.servers.redis import RedisServer

NAMES = ["request", "alone", "apart", "turns", "processes", "readers"]
QUICK = ("bench", "--seconds", "1", "--tasks", "3")


@pytest.fixture(autouse=True)
def there(store: Store) -> None:
    """The file is there; and somebody else's lock, which is no business of a bench."""
    store.leave_behind("order", "1", "x")


def only_theirs(store: Store) -> bool:
    """Nothing is held but what was before."""
    return [seen["resource"] for seen in store.json("ls")] == ["order/1"]


def check(report: dict[str, Any]) -> None:
    """Counts add up, and figures are in order; how large they are says nothing."""
    figures = report["figures"]
    assert [figure["name"] for figure in figures] == NAMES
    for figure in figures:
        assert figure["count"] >= 1, figure
        assert 0 <= figure["median"] <= figure["p90"]
        assert (figure["per_second"] is None) == (figure["name"] == "processes")
        assert figure["ratio"] == pytest.approx(
            figure["median"] / figures[0]["median"], abs=1e-9
        )
    counts = {figure["name"]: figure["count"] for figure in figures}
    assert counts["apart"] >= 3
    assert counts["readers"] >= 3
    assert counts["turns"] >= 2


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_json(store: Store, loop: str) -> None:
    report = store.json(*QUICK, "--loop", loop)
    about = {key: report[key] for key in report if key != "figures"}
    assert about == {"store": store.url, "loop": loop, "tasks": 3, "seconds": 1.0}
    check(report)
    assert only_theirs(store)


@every_layout
def test_a_table(store: Store) -> None:
    done = store.rwlock(*QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.split() == [
        "MEDIAN",
        "ms",
        "90",
        "%",
        "ms",
        "PER",
        "SECOND",
        "×",  # noqa: RUF001
        "REQUEST",
        "COUNT",
        "WHAT",
    ]
    assert len(lines) == len(NAMES)
    assert lines[0].split()[3] == "1.00"
    assert "3 tasks" in lines[2]
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert only_theirs(store)


def test_on_redis(store: Store, redis_server: RedisServer) -> None:
    place = redis_server.url.removesuffix("/0").partition("://")[2]
    url = f"redis://default:swordfish@{place}/4"  # nobody else's database
    done = store.rwlock(*QUICK, "--json", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "swordfish" not in done.stdout
    check(json.loads(done.stdout))
    assert store.json("ls", "--url", url) == []


def test_the_keys_are_documented(store: Store) -> None:
    output = store.rwlock("bench", "--help").stdout
    for key in ("store", "figures", "meaning", "median", "p90", "per_second", "ratio"):
        assert key in output


def test_a_store_that_is_not_there_is_69(store: Store) -> None:
    url = f"redis://{IP}:{free_port()}/0"
    done = store.rwlock("bench", "--url", url)
    assert (done.returncode, done.stdout) == (69, "")
    assert len(done.stderr.splitlines()) == 1


ENDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("end", ENDS)
def test_interrupted_among_tasks_nothing_is_held(
    store: Store, end: signal.Signals
) -> None:
    with store.running("bench", "--seconds", "6") as process:
        eventually(lambda: any("processes" not in name for name in held(store)))
        process.send_signal(end)
        output = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + end
    assert output == ("", f"rwlock: {end.name}: nothing is left behind\n")
    assert only_theirs(store)


@pytest.mark.parametrize("end", ENDS)
def test_interrupted_among_processes_nothing_is_held(
    store: Store, end: signal.Signals
) -> None:
    """Not for a moment: no lease has to run out."""
    with store.running("bench", "--seconds", "18", "--tasks", "1") as process:
        partner = partner_of(process, store)
        for pid in {partner, process.pid}:  # as a terminal does
            if end != signal.SIGTERM or pid == process.pid:
                os.kill(pid, end)
        output = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + end
    assert output == ("", f"rwlock: {end.name}: nothing is left behind\n")
    assert only_theirs(store)
    assert partner not in processes()


def test_the_other_process_does_not_come_to_an_end(store: Store) -> None:
    """Interrupted, it says what is left."""
    with store.running("bench", "--seconds", "18", "--tasks", "1") as process:
        partner = partner_of(process, store)
        os.kill(partner, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
    assert err == "rwlock: SIGINT: what the other process had ends in 10 s\n"
    assert partner not in processes()


def test_the_other_process_dies(store: Store) -> None:
    with store.running("bench", "--seconds", "18", "--tasks", "1") as process:
        os.kill(partner_of(process, store), signal.SIGKILL)
        output = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert output == ("", "rwlock: the other process ended early: ?\n")


def partner_of(process: subprocess.Popen[str], store: Store) -> int:
    """Its other process, at the time when the two take turns."""
    eventually(lambda: any("processes" in name for name in held(store)))
    (partner,) = children(process.pid)
    return partner


def held(store: Store) -> list[str]:
    """Names that a bench uses just now."""
    return [seen["id"] for seen in store.json("ls", TYPE)]
