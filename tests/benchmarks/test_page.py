"""The page of the benchmarks is made of its data alone. No time is judged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.harness.measures import CYCLES, HAND_OVER
from benchmarks.harness.report import NotMeasured, Sample, verdicts
from benchmarks.page.__main__ import main, write_page
from benchmarks.page.bars import BARS, judged
from benchmarks.page.data import Data, Values, collected
from benchmarks.page.plots import PLOTS, svg
from benchmarks.page.suites import SUITES, scenario_names
from benchmarks.page.text import SHORT_RUN, Compared, render
from benchmarks.redis import adapters as redis
from benchmarks.redis.scenarios import CYCLE

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = Path(__file__).with_name("recorded_page.json")
"""A quick run of all suites."""


@pytest.fixture(scope="module")
def recorded() -> Data:
    return Data.read(RECORDED)


# -------------------------------------------------------------------- page and plots


def test_the_committed_page_is_what_the_committed_data_make(tmp_path: Path) -> None:
    write_page(Data.read(DOCS / "benchmarks.json"), tmp_path)
    made = files_of(tmp_path)
    committed = {
        name: text
        for name, text in files_of(DOCS).items()
        if name.partition("/")[0] in {"benchmarks", "benchmarks.md"}
    }
    assert sorted(made) == sorted(committed)
    for name, text in made.items():
        assert text == committed[name], f"docs/{name}: nox -s bench -- page --render"


def files_of(folder: Path) -> dict[str, str]:
    """Return the texts of the page and of its plots, by their names in the folder."""
    paths = [folder / "benchmarks.md", *folder.glob("benchmarks/*")]
    return {p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in paths}


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_shows_our_figures(name: str, recorded: Data) -> None:
    text = svg(name, recorded)
    root = ET.fromstring(text)  # noqa: S314 - our own plot
    assert root.tag.endswith("svg")
    words = {node.text for node in root.iter() if node.tag.endswith("text")}
    assert any(word and redis.OURS in word for word in words)
    assert len(text) < 100_000


def test_the_same_data_make_the_same_plot(recorded: Data) -> None:
    # Else each run of the command would change every file.
    assert svg("hand-over", recorded) == svg("hand-over", recorded)


def test_the_page_shows_every_plot(recorded: Data) -> None:
    shown = re.findall(r"!\[.+\]\(benchmarks/(.+)\.svg\)", render(recorded))
    assert sorted(shown) == sorted(PLOTS)


def test_without_figures_there_is_no_plot_and_the_page_says_so(
    tmp_path: Path, recorded: Data
) -> None:
    redis_only = {"redis": {"alone": recorded.values["redis"]["alone"]}}
    write_page(replace(recorded, values=redis_only), tmp_path)
    plots = {file.stem for file in tmp_path.glob("benchmarks/*")}
    assert "cycle" in plots
    assert "hand-over-stores" not in plots
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert "benchmarks/cycle.svg" in text
    assert "hand-over-stores.svg" not in text
    assert "This run has no figures for this plot" in text


def test_a_peer_that_was_left_out_is_named_and_not_shown(recorded: Data) -> None:
    values = json.loads(json.dumps(recorded.values))
    for peers in values["redis"].values():
        peers.pop(redis.REDISSON, None)
    note = "Redisson is left out: there is no java on PATH."
    data = replace(recorded, values=values, notes=[note])
    assert f"* {note}" in render(data)
    assert redis.REDISSON not in svg("hand-over", data)


def test_a_short_run_says_that_it_is_one(recorded: Data) -> None:
    short = render(replace(recorded, short=True))
    assert SHORT_RUN in short
    assert "| holds |" not in short  # not judged
    usual = render(replace(recorded, short=False))
    assert SHORT_RUN not in usual
    assert "| alone | cycle, of the floor's | ≤ 2.20 |" in usual


def test_the_page_names_its_surroundings(recorded: Data) -> None:
    text = render(recorded)
    for name in ("date", "commit", "command", "processor", "python"):
        assert str(recorded.about[name]) in text
    for package in ("redis-server", "coredis", "rueidislock", "Redisson", "asyncpg"):
        assert f"{package} {recorded.about['versions'][package]}" in text


# -------------------------------------------------------------------------- sentences


def test_who_is_better_is_found_in_the_data() -> None:
    found = {"ours": 2.0, redis.FLOOR: 1.0, redis.RUEIDIS: 1.5, "slow": 9.0}
    said = Compared(found, "ours", unit="µs").sentences()
    assert said.startswith("Ours: 2.00 µs. Better: floor (1.00 µs), rueidislock (1.50")
    assert "Worse: slow (9.00 µs)." in said
    assert "rueidislock is compiled" in said  # what it does less


def test_more_may_be_better() -> None:
    found = {"ours": 5.0, "fast": 9.0, "slow": 1.0}
    compared = Compared(found, "ours", less_is_better=False)
    assert list(compared.better()) == ["fast"]
    assert list(compared.worse()) == ["slow"]
    alone = Compared({"ours": 5.0, "slow": 1.0}, "ours", less_is_better=False)
    assert "No peer is better here." in alone.sentences()


def test_without_a_figure_of_ours_nobody_is_said_to_be_better() -> None:
    said = Compared({"other": 1.0}, "ours").sentences()
    assert said == "This run has no figure of ours."


# ------------------------------------------------------------------------------- data


def sample(peer: str, repetition: int, value: float, metric: str = CYCLE) -> Sample:
    return Sample("asyncio", "alone", metric, "redis", peer, repetition, value)


def invented(values: Values) -> Data:
    return Data({}, True, 2, [], [], {"redis": values})


def test_data_are_read_as_they_were_written(tmp_path: Path, recorded: Data) -> None:
    file = tmp_path / "data.json"
    recorded.write(file)
    assert Data.read(file) == recorded
    assert file.read_text("utf-8") == RECORDED.read_text("utf-8")


def test_values_keep_four_digits_and_their_repetition() -> None:
    samples = [sample("ours", 0, 123.456), sample("ours", 1, 7.0)]
    values = collected(samples, 2)
    assert values == {"alone": {"ours": {CYCLE: [[123.5], [7]]}}}


def test_goals_are_judged_by_suite() -> None:
    samples = [
        *(sample(redis.FLOOR, n, value) for n, value in enumerate((100, 1000))),
        *(sample(redis.OURS, n, value) for n, value in enumerate((220, 2200))),
        *(sample(redis.REDIS_PY, n, value) for n, value in enumerate((300, 3000))),
    ]
    found = judged(invented(collected(samples, 2)))
    of_alone = [v for v in found["redis"] if v.bar.scenario == "alone"]
    assert [verdict.holds for verdict in of_alone] == [True, False]
    assert [verdict.figure for verdict in of_alone] == pytest.approx([2.2, 0.733], 0.01)
    # What was not measured is not said to hold.
    assert {v.holds for v in found["cassandra"] + found["sql"]} == {None}


def test_every_goal_has_figures_in_a_whole_run(recorded: Data) -> None:
    silent = [
        f"{suite}: {verdict.bar.scenario}: {verdict.bar.what}"
        for suite, found in judged(recorded).items()
        for verdict in found
        if verdict.holds is None
    ]
    assert silent == []
    for suite, bars in BARS.items():
        assert len(list(verdicts(bars, recorded.figures(suite)))) == len(bars)


# ------------------------------------------------------------------------ measurement


def test_every_scenario_exists_in_its_suite() -> None:
    for name, scenarios in scenario_names().items():
        suite = SUITES[name]()
        assert tuple(suite.scenarios) == scenarios
        entrants = {peer for s in suite.scenarios.values() for peer, _ in s.entrants}
        assert entrants <= set(suite.peers) | {redis.BLPOP}


def test_only_measures_a_part_and_writes_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "part.json"
    words = ["--quick", "--only", "files/handover", "--docs", str(tmp_path)]
    assert main([*words, "--json", str(file)]) == 0
    assert HAND_OVER in capsys.readouterr().out
    assert not (tmp_path / "benchmarks.md").exists()
    data = Data.read(file)
    assert list(data.values) == ["files"]
    assert list(data.values["files"]) == ["hand-over"]
    assert data.short
    assert data.failed == []


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such suite or scenario: nothing"):
        main(["--only", "nothing"])


def test_a_plot_needs_figures() -> None:
    empty = invented({"alone": {redis.OURS: {CYCLES: [[1.0]]}}})
    for name in PLOTS:
        with pytest.raises(NotMeasured):
            svg(name, empty)
