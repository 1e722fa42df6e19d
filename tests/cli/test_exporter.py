"""`rwlock exporter`: what Prometheus reads about a store, whatever happens to it."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aiorwlock_remote import BackendUnavailable, LockInfo
from aiorwlock_remote.cli import exporter as command
from aiorwlock_remote.cli import store_metrics
from aiorwlock_remote.cli.exit_codes import REFUSED, USAGE
from aiorwlock_remote.cli.main import main
from aiorwlock_remote.cli.store_metrics import (
    OTHER_TYPES,
    StoreCollector,
    StoreFigures,
    StoreLister,
    TypeFigures,
)
from tests.cli.fix_cli import TIMEOUT, Store, eventually
from tests.cli.watch.fix_watch import holder, order, queued
from tests.servers.redis import RedisServer

UP = "rwlock_store_up"


class Listed:
    """A store that lists what it is given, or fails."""

    def __init__(self, *resources: LockInfo) -> None:
        self.resources = list(resources)
        self.fails: Exception | None = None
        self.hangs = False
        self.reports: list[str] = []

    async def list(self) -> AsyncGenerator[LockInfo, None]:
        if self.hangs:
            await anyio.sleep_forever()
        if self.fails is not None:
            raise self.fails
        for one in self.resources:
            yield one

    def lister(self, *, by_type: bool = True, timeout: float = 60.0) -> StoreLister:
        async def open_store() -> Any:  # noqa: ANN401 - as far as it is used, a Locks
            return self

        return StoreLister(open_store, timeout, self.reports.append, by_type=by_type)


def exported(lister: StoreLister) -> dict[str, float]:
    """One scrape: the value of each series."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(lambda: anyio.run(lister.list_store), 0.0))
    return samples(generate_latest(registry).decode())


def samples(text: str) -> dict[str, float]:
    """By their names without the prefix, types and modes."""
    return {
        " ".join(
            [
                one.name.removeprefix("rwlock_store_"),
                *(
                    one.labels[label]
                    for label in ("type", "mode")
                    if label in one.labels
                ),
            ]
        ): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_the_exported_counts() -> None:
    store = Listed(
        order(1, holder("a"), holder("b", mode="read", age=7.0)),
        order(2, holder("c", expires_in=None, age=100.0)),
        order(3, holder("d", expires_in=-1.0, age=1000.0)),
        order(4, queue=[queued(waiting=3, age=5.0), queued("read", age=2.0)]),
    )
    seen = exported(store.lister())
    assert 0 < seen.pop("listing_seconds") < 60
    assert seen == {
        "up": 1,
        "held order write": 2,
        "held order read": 1,
        "waiting order write": 3,
        "waiting order read": 1,
        "never_ending order": 1,
        "left_behind order": 1,
        "ran_out order": 1,  # it blocks nobody
        "oldest_held_seconds order": 100,
        "longest_wait_seconds order": 5,
    }


def test_after_the_clock_was_set_back_every_live_holder_looks_left_behind() -> None:
    back = replace(
        order(1, holder("a"), holder("b", expires_in=-1.0)), clock_set_back=9
    )
    seen = exported(Listed(back).lister())
    assert (seen["left_behind order"], seen["ran_out order"]) == (1, 1)


def test_a_type_that_was_seen_is_counted_on() -> None:
    store = Listed(order(1, holder("a"), queue=[queued()]))
    lister = store.lister()
    exported(lister)
    store.resources.clear()
    for _ in range(2):
        seen = exported(lister)
        assert seen["held order write"] == seen["waiting order write"] == 0
        assert seen["left_behind order"] == 0
        assert "oldest_held_seconds order" not in seen


def test_all_types_together() -> None:
    assert exported(Listed().lister(by_type=False))["left_behind "] == 0
    store = Listed(order(1, holder("a")), order(2, holder("b")))
    seen = exported(store.lister(by_type=False))
    assert seen["held  write"] == 2


def test_types_made_from_ids_do_not_fill_prometheus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_metrics, "MAX_TYPES", 2)
    one = order(1, holder("a"))
    store = Listed(*(replace(one, resource_type=f"order-{n}") for n in range(5)))
    lister = store.lister()
    for _ in range(2):
        seen = exported(lister)
        types = {name.split()[1] for name in seen if name.startswith("held ")}
        assert types == {"order-0", "order-1", OTHER_TYPES}
        assert seen[f"held {OTHER_TYPES} write"] == 3


def test_a_store_that_is_away() -> None:
    store = Listed(order(1, holder("a")))
    lister = store.lister()
    assert exported(lister)["up"] == 1
    store.fails = BackendUnavailable(what="connection refused")
    for _ in range(2):
        assert exported(lister) == {"up": 0}
    store.fails = None
    assert exported(lister)["held order write"] == 1
    down, back = store.reports
    assert "connection refused" in down
    assert back == "the store is back"


def test_a_store_that_does_not_answer() -> None:
    store = Listed()
    store.hangs = True
    assert exported(store.lister(timeout=0.01)) == {"up": 0}
    assert "did not answer in 0.01 s" in store.reports[0]


def test_two_scrapers_cost_one_listing() -> None:
    looks = 0

    def look() -> StoreFigures:
        nonlocal looks
        looks += 1
        time.sleep(0.05)
        return StoreFigures({"order": TypeFigures()}, 0.05)

    def scrape(collector: StoreCollector) -> None:
        assert next(family.name for family in collector.collect()) == UP

    cached = StoreCollector(look, 60.0)
    scrapers = [threading.Thread(target=scrape, args=(cached,)) for _ in range(4)]
    for thread in scrapers:
        thread.start()
    for thread in scrapers:
        thread.join()
    assert looks == 1
    for _ in range(2):
        scrape(StoreCollector(look, 0.0))
    assert looks == 3


# ------------------------------------------------------------------------ as a process


@contextmanager
def serving(store: Store, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with store.running("exporter", "--listen", "127.0.0.1:0", *words) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def scrape(url: str) -> dict[str, float]:
    assert url.startswith("http://127.0.0.1:")
    with urlopen(url, timeout=TIMEOUT) as reply:  # noqa: S310 - http, as asserted
        return samples(reply.read().decode())


def test_until_sigterm(store: Store, tmp_path: Path) -> None:
    """It comes before its store, outlives it, and ends in order."""
    path = tmp_path / "locks.db"
    with serving(store, "--cache", "0") as (process, url):
        assert scrape(url) == {"up": 0}
        store.leave_behind("order", "7", "a")
        seen = scrape(url)
        assert seen["up"] == seen["held order write"] == 1
        assert seen["never_ending order"] == seen["left_behind order"] == 1
        for file in tmp_path.glob("locks.db*"):
            file.unlink()
        assert not path.exists()
        assert scrape(url) == {"up": 0}
        assert not path.exists()
        store.leave_behind("other", "7", "a")
        assert scrape(url)["held other write"] == 1
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (0, "")
    first, back, second, again = err.splitlines()
    assert "does not exist" in first
    assert "does not exist" in second
    assert back == again == "rwlock: the store is back"


def test_a_server_that_is_stopped_and_comes_back(store: Store, tmp_path: Path) -> None:
    with closing(RedisServer(tmp_path)) as server:
        options = ("--url", server.url, "--cache", "0", "--timeout", "2")
        with serving(store, *options, "--by", "total") as (_, url):
            seen = scrape(url)
            assert seen["up"] == 1
            assert seen["left_behind "] == 0
            server.stop()
            assert scrape(url) == {"up": 0}
            server.start()
            eventually(lambda: scrape(url)["up"] == 1)


def test_a_port_that_is_taken(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = store.rwlock("exporter", "--listen", where)
    assert ended.returncode == REFUSED
    (line,) = ended.stderr.splitlines()
    assert "in use" in line


@pytest.mark.parametrize("listen", ["9749", ":9749", "localhost:x", "h:70000", "h:"])
def test_a_bad_address(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exporter", "--url", "sqlite:///x", "--listen", listen]) == USAGE
    assert "is not HOST:PORT" in capsys.readouterr().err


def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert main(["exporter", "--url", "sqlite:///x"]) == USAGE
    assert "aiorwlock-remote[prometheus]" in capsys.readouterr().err
