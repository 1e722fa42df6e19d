"""`examples/monitoring`: rules, dashboard and configuration, in a real Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from aiorwlock_remote import connect
from aiorwlock_remote.cli.store_metrics import (
    StoreCollector,
    StoreFigures,
    TypeFigures,
)
from aiorwlock_remote.integrations import otel, prometheus
from tests.cli.fix_cli import RWLOCK
from tests.examples.fix_site import EXAMPLES, environment
from tests.servers.process import IP, free_port, needed, takes_connections, until
from tests.servers.prometheus import PrometheusServer

MONITORING = EXAMPLES / "monitoring"
DOCS = EXAMPLES.parent / "docs"
RULES = (MONITORING / "rwlock.rules.yml").read_text("utf-8")
TESTS = (MONITORING / "rwlock.rules.test.yml").read_text("utf-8")
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text("utf-8"))
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}


def expressions() -> list[tuple[str, str]]:
    """The title and the expression of each curve of the dashboard."""
    return [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def metrics(collector: Collector) -> dict[str, tuple[str, ...]]:
    """Its metrics, by the names under which they are documented; each with those of
    its series.
    """
    found = {}
    for metric in collector.collect():
        series = [metric.name + part for part in PARTS.get(metric.type, ("",))]
        shown = series[0] if metric.type == "counter" else metric.name
        found[shown] = tuple(series)
    return found


def of_applications() -> dict[str, tuple[str, ...]]:
    registry = CollectorRegistry()
    prometheus.PrometheusObserver(registry)
    return metrics(registry)


def of_stores() -> dict[str, tuple[str, ...]]:
    figures = StoreFigures({"order": TypeFigures()}, 0.1)
    return metrics(StoreCollector(lambda: figures, 0.0))


# ------------------------------------------------------------------------------- names


def used(text: str) -> set[str]:
    return set(re.findall(r"\brwlock_\w+", text))


@pytest.mark.parametrize(
    "text",
    [RULES, TESTS, " ".join(expression for _, expression in expressions())],
    ids=["rules", "tests", "dashboard"],
)
def test_every_metric_that_is_used_exists(text: str) -> None:
    every = [*of_applications().values(), *of_stores().values()]
    assert used(text)
    assert used(text) <= {name for names in every for name in names}


def documented(module: ModuleType) -> set[str]:
    """The first column of the table in its docstring."""
    text = module.__doc__ or ""
    return set(re.findall(r"^``(rwlock[\w.]+)``  ", text, re.MULTILINE))


def test_every_metric_is_documented() -> None:
    page = (DOCS / "howto/metrics.md").read_text("utf-8")
    tables = set(re.findall(r"^\| `(rwlock[\w.]+)(?<!\.yml)`", page, re.MULTILINE))
    listed, traced = map(documented, (prometheus, otel))
    assert tables == {*of_applications(), *of_stores(), *traced}
    assert listed == set(of_applications())


def test_every_metric_is_on_the_dashboard() -> None:
    shown = used("".join(expression for _, expression in expressions()))
    every = of_applications() | of_stores()
    assert [name for name, series in every.items() if not shown & set(series)] == []


# ------------------------------------------------------------------------ the dashboard


def test_the_dashboard() -> None:
    panels = DASHBOARD["panels"]
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            variables = set(re.findall(r"\$(\w+)", target["expr"]))
            assert variables <= names | {"__rate_interval"}


# ---------------------------------------------------------------------------- the rules


def promtool(*words: str) -> str:
    ran = subprocess.run(
        [needed("promtool", "prometheus"), *words],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_the_rules() -> None:
    promtool("check", "rules", "rwlock.rules.yml")
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "rwlock.rules.test.yml")


def test_each_alert_is_documented_and_tested_to_fire() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES)
    fire = re.findall(r"alertname: (\w+)\n +exp_alerts:", TESTS)
    assert len(alerts) == RULES.count("alert:")
    assert set(alerts) == set(fire)
    page = (DOCS / "howto/metrics.md").read_text("utf-8")
    assert set(alerts) == set(re.findall(r"`(Rwlock\w+)`", page))


# ------------------------------------------------------------------- a real Prometheus

EMPTY = {"Longest wait", "Longest wait at the store", "Waiting at the store"}
"""Curves that have nothing to show while no task waits."""


@contextmanager
def running(
    name: str, folder: Path, *command: str | Path, **env: str
) -> Iterator[None]:
    """A program of Python; it ends by SIGTERM, and without a traceback."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment(folder, **env),
            stdout=out,
            stderr=out,
        )
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


def configure(folder: Path, app: int, exporter: int) -> None:
    """Write the files of the example, with other ports and without patience."""
    text = (MONITORING / "prometheus.yml").read_text("utf-8")
    text = re.sub(r"interval: 15s", "interval: 1s", text)
    text = text.replace("127.0.0.1:8000", f"{IP}:{app}")
    text = text.replace("127.0.0.1:9749", f"{IP}:{exporter}")
    assert text.count(f'"{IP}:') == 2
    (folder / "prometheus.yml").write_text(text)
    rules = re.sub(r"for: \d+[smh]$", "for: 1s", RULES, flags=re.MULTILINE)
    (folder / "rwlock.rules.yml").write_text(rules)


def refund(port: int, order: int, work: int) -> int:
    """The status of the answer; ``work``: seconds that it takes."""
    url = f"http://{IP}:{port}/orders/{order}/refund?work={work}"
    request = Request(url, method="POST")
    try:
        with urlopen(request, timeout=60) as reply:  # noqa: S310
            return int(reply.status)
    except HTTPError as exc:
        with exc:
            return exc.code


def empty_curves(server: PrometheusServer) -> set[str]:
    """The titles of those that have nothing to show now."""
    return {
        title
        for title, expression in expressions()
        if not server.query(
            re.sub(r"\$(job|store|type)", ".*", expression).replace(
                "$__rate_interval", "10s"
            )
        )
    }


def firing(server: PrometheusServer) -> set[tuple[str, str]]:
    """The name and type of each alert that fires."""
    found = server.query('ALERTS{alertstate="firing"}')
    labels = [one["metric"] for one in found]
    return {(one["alertname"], one.get("type", "")) for one in labels}


async def leave_behind(url: str) -> None:
    async with connect(url) as locks:
        await locks.acquire_mutex_lock("deploy", "db", "gluww")


async def break_order_7(url: str) -> None:
    async with connect(url) as locks:
        seen = await locks.mutex("order", 7).info()
        assert await locks.force_release(seen, reason="test") == 1


@pytest.mark.slow
def test_in_a_real_prometheus(tmp_path: Path) -> None:
    """It scrapes an application and an exporter; one lock is lost, one left behind."""
    url = f"sqlite:///{tmp_path}/locks.db"
    app, exporter = free_port(), free_port()
    listen = ("--listen", f"{IP}:{exporter}", "--cache", "0.5")
    configure(tmp_path, app, exporter)
    web = running(
        "app", tmp_path, MONITORING / "app.py", PORT=str(app), LOCKS_LEASE="3"
    )
    store = running(
        "exporter", tmp_path, *RWLOCK[1:], "exporter", "--url", url, *listen
    )
    with (
        web,
        store,
        closing(PrometheusServer(tmp_path)) as server,
        ThreadPoolExecutor() as pool,
    ):
        until(lambda: takes_connections(IP, app), "the application serves")
        anyio.run(leave_behind, url)
        assert refund(app, 8, 0) == 200
        slow = pool.submit(refund, app, 7, 60)
        up = 'up{job=~"app|rwlock-store"} == 1'
        until(lambda: len(server.query(up)) == 2, "both are scraped")
        # What Prometheus has not seen at 0 does not increase.
        lost = 'rwlock_lost_total{type="order", reason="forced"} == 0'
        until(lambda: bool(server.query(lost)), "the grant is measured")
        until(
            lambda: empty_curves(server) == EMPTY, "the dashboard is drawn", every=0.2
        )
        anyio.run(break_order_7, url)
        assert slow.result(60) == 503
        expected = {("RwlockLost", "order"), ("RwlockNeverEnding", "deploy")}
        until(lambda: firing(server) >= expected, "the alerts fire", every=0.1)
        assert {name for name, _ in firing(server)} == {
            "RwlockLost",
            "RwlockNeverEnding",
        }
