"""The pictures of the documentation are what their scripts draw, and tell no lies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len

from aiorwlock_remote.cli.format import RESOURCE_HEAD
from aiorwlock_remote.core.queue_states import Entry, Event, Request
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.registry import _BUILT_IN
from docs.pictures import (
    failovers,
    fair_queue,
    growth,
    layers,
    lock_and_transaction,
    mutex_life,
    paused_holder,
    queue_states,
    which_store,
)
from docs.pictures.svg import DARK, FOLDER, LIGHT, WIDTH, Picture
from docs.pictures.tables import with_table
from tests.docs.test_tables import STORES
from tests.failovers.topologies import TOPOLOGIES

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
DRAWN: dict[str, Callable[[], Picture]] = {
    "paused-holder.svg": paused_holder.picture,
    "lock-and-transaction.svg": lock_and_transaction.picture,
    "mutex-life.svg": mutex_life.picture,
    "queue-states.svg": queue_states.picture,
    "which-store.svg": which_store.picture,
    "layers.svg": layers.picture,
    "fair-queue.svg": lambda: fair_queue.picture(
        json.loads(fair_queue.DATA.read_text("utf-8"))
    ),
    "failovers.svg": lambda: failovers.picture(failovers.measured()),
    "growth.svg": lambda: growth.picture(growth.measured()),
}
RECORDED = ("watch.svg", "../demo.svg")


@pytest.mark.parametrize("name", DRAWN)
def test_the_picture_is_what_its_script_draws(name: str) -> None:
    module = DRAWN[name].__module__
    drawn = DRAWN[name]().text()
    assert (FOLDER / name).read_text("utf-8") == drawn, f"run python -m {module}"


@pytest.mark.parametrize("name", [*DRAWN, *RECORDED])
def test_a_picture_is_light_and_dark_and_says_what_it_shows(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    light, dark = text.split("@media (prefers-color-scheme:dark)")
    assert LIGHT["text"] in light
    assert DARK["text"] in dark
    picture = ET.fromstring(text)  # noqa: S314 - a file of our own
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == picture.findtext(f"{SVG}title")


@pytest.mark.parametrize("name", DRAWN)
def test_words_are_large_and_inside_of_the_picture(name: str) -> None:
    picture = ET.parse(FOLDER / name).getroot()  # noqa: S314 - a file of our own
    assert picture.get("viewBox", "").startswith(f"0 0 {WIDTH} ")
    height = float(picture.get("viewBox", "").split()[3])
    for text in picture.iter(f"{SVG}text"):
        size, words = float(text.get("font-size", 0)), text.text or ""
        # A letter is seldom wider than six tenths of its height.
        width = 0.56 * size * cell_len(words)
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        left = {"end": x - width, "middle": x - width / 2}.get(
            text.get("text-anchor", "start"), x
        )
        assert size >= 12, words
        assert left >= 0, words
        assert left + width <= WIDTH, words
        assert y <= height, words


def test_the_life_of_a_mutex_is_complete() -> None:
    for push in (False, True):
        known = mutex_life.edges(push=push)
        further = mutex_life.edges(push=push, depth=mutex_life.DEPTH + 4)
        assert {edge for edge in further if edge[0] != edge[2]} <= known
    states = {
        state
        for push in (False, True)
        for before, _, after in mutex_life.edges(push=push)
        for state in (before, after)
    }
    assert states == set(mutex_life.STATES)


def test_each_step_of_the_life_has_a_colour() -> None:
    drawn = {what for _, _, steps in mutex_life.CAUSES for what in steps}
    steps = mutex_life.edges(push=False) | mutex_life.edges(push=True)
    assert {what for before, what, after in steps if before != after} == drawn


def test_each_event_of_a_queue_has_one_colour() -> None:
    drawn = [event for _, _, events in queue_states.CAUSES for event in events]
    assert sorted(drawn) == sorted(Event)


def test_the_states_of_a_queue_are_in_the_tables_of_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## The states of a local queue")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z ]+) \|", section, re.MULTILINE)
    assert rows == ["entry", *Entry, "request", *Request]


def test_which_store_says_what_the_stores_say() -> None:
    asked = []
    for _, urls, word in which_store.QUESTIONS:
        for scheme in re.findall(r"(\w+)://", urls):
            store = getattr(
                import_module(_BUILT_IN[scheme].partition(":")[0]), STORES[scheme]
            )
            asked.append(scheme)
            capabilities = store.capabilities
            notifies = Capability.NOTIFIES in capabilities
            if word in {"wakes waiters", "waiters poll"}:
                assert notifies == (word == "wakes waiters")
                assert Capability.MANY_HOSTS in capabilities
    assert len({STORES[scheme] for scheme in asked} | {"FileStore"}) == len(
        set(_BUILT_IN.values())
    )


def test_the_measured_figures_say_how_they_were_made() -> None:
    data = json.loads(fair_queue.DATA.read_text("utf-8"))
    assert len(data["queue"]) == len(data["polling"]) == data["clients"]
    assert data["made by"].startswith("python -m docs.pictures.fair_queue")
    assert max(data["queue"]) - min(data["queue"]) <= 2


def test_failovers_were_measured_in_each_way_and_stand_in_the_table() -> None:
    runs = failovers.measured()
    assert list(runs) == list(failovers.STORES) == list(TOPOLOGIES)
    for name, run in runs.items():
        assert run["setting"] == TOPOLOGIES[name].setting
        assert list(run["ways"]) == list(TOPOLOGIES[name].ways)
        least = 2 if name == "cassandra" else 5
        assert all(len(costs) >= least for costs in run["ways"].values())
        assert run["fences gone back"] == 0
    page = failovers.PAGE.read_text("utf-8")
    assert with_table(page, failovers.table(runs)) == page


def test_the_recorded_watch_has_the_columns_of_the_command() -> None:
    shown = (FOLDER / "watch.svg").read_text("utf-8")
    for column in set(RESOURCE_HEAD) - {"FENCE", "WHO"}:
        assert f">{column}</text>" in shown
    for change in ("granted", "ended", "queue", "free"):
        assert f">{change}</text>" in shown


def test_every_picture_is_on_a_page() -> None:
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))
    unused = [
        path.name for path in FOLDER.glob("*.svg") if f"/{path.name}" not in pages
    ]
    assert unused == []


def test_growth_stands_in_the_tables_of_its_page() -> None:
    stores = growth.measured()
    assert {"redis", "postgresql"} <= stores.keys()
    for store, curves in stores.items():
        fewest = 2 if store in {"redis", "postgresql"} else 0  # measured whole
        assert all(len(points) >= fewest for points in curves.values())
    page = growth.PAGE.read_text("utf-8")
    assert growth.with_tables(page, stores) == page, (
        "run python -m docs.pictures.growth"
    )
    assert page.count("| Redis |") > 8
