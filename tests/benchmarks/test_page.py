"""The page of the benchmarks is made of its data alone. No time is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.harness.measures import CYCLES, HAND_OVER
from benchmarks.harness.report import NotMeasured, Sample
from benchmarks.harness.scenario import Measured, Round
from benchmarks.harness.suite import Suite
from benchmarks.local.scenarios import Folder
from benchmarks.page.__main__ import main, write_page
from benchmarks.page.data import Data, Values, collected
from benchmarks.page.parts import Progress
from benchmarks.page.plots import PLOTS, svg
from benchmarks.page.suites import (
    START_SECONDS,
    SUITES,
    judged,
    round_seconds,
    run_order,
    scenario_names,
)
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
    cycle, of_redis_py, uvloop = (
        verdict for verdict in found["redis"] if verdict.bar.scenario == "alone"
    )
    assert cycle.figure == pytest.approx(2.2)
    assert cycle.holds is True
    assert of_redis_py.figure == pytest.approx(0.733, 0.01)
    assert of_redis_py.holds is False
    assert uvloop.holds is None
    # What was not measured is not said to hold.
    assert {v.holds for v in found["cassandra"] + found["sql"]} == {None}


NOT_ON_THE_PAGE = """\
redis/alone: uvloop: cycle, of its floor's
redis/many-readers: reader's cycle beside 10,000, of beside 1
redis/any-of-set: cycle of any among 10,000, of among 10
redis/held-locks: 10,000 locks held
sql/waiters: statements of all waiters
sql/waiters: MariaDB: statements of all waiters
sql/waiters: MySQL: statements of all waiters
sql/waiters: served of 1,000
cassandra/alone: published calls: cycle, of the floor's
cassandra/own-keys: published calls: cycles/s, of the floor's
cassandra/one-key-processes: longest wait, of the mean wait
cassandra/one-key-processes: every cycle its own rising fence
cassandra/waiters: transactions of all waiters
cassandra/waiters: served of 1,000
etcd/waiters: calls of all waiters
etcd/waiters: served of 1,000
"""
"""Goals that only the suites' own runs measure."""


def test_every_other_goal_has_figures_in_a_whole_run(recorded: Data) -> None:
    silent = [
        f"{suite}/{verdict.bar.scenario}: {verdict.bar.what}"
        for suite, found in judged(recorded).items()
        for verdict in found
        if verdict.holds is None
    ]
    assert silent == NOT_ON_THE_PAGE.splitlines()


def test_a_missed_goal_is_said_to_be_missed_and_the_silent_ones_are_named(
    recorded: Data,
) -> None:
    text = render(replace(recorded, short=False))
    found = [verdict for each in judged(recorded).values() for verdict in each]
    missed = sum(verdict.holds is False for verdict in found)
    assert missed > 0
    silent = NOT_ON_THE_PAGE.splitlines()
    assert f"and {missed} are missed; {len(silent)} were not measured." in text
    assert text.count("| **NO** |") == missed
    for line in silent:
        suite, _, rest = line.partition("/")
        scenario, _, what = rest.partition(": ")
        assert f"* {suite}, {scenario}: {what}" in text


# ------------------------------------------------------------------------ measurement


def test_every_scenario_exists_in_its_suite() -> None:
    for name, scenarios in scenario_names().items():
        suite = SUITES[name]()
        assert tuple(suite.scenarios) == scenarios
        assert sorted(run_order()[name]) == sorted(scenarios)
        assert all(round_seconds(name, scenario) > 0 for scenario in scenarios)
        assert START_SECONDS[name] > 0
        entrants = {peer for s in suite.scenarios.values() for peer, _ in s.entrants}
        assert entrants <= set(suite.peers) | {redis.BLPOP}


def test_only_measures_a_part_and_writes_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "part.json"
    words = ["--quick", "--only", "files/handover", "--docs", str(tmp_path)]
    words += ["--parts", str(tmp_path / "parts"), "--json", str(file)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert HAND_OVER in printed.out
    assert "4 of 4, files/hand-over 0, " in printed.err
    assert not (tmp_path / "benchmarks.md").exists()
    data = Data.read(file)
    assert list(data.values) == ["files"]
    assert list(data.values["files"]) == ["hand-over"]
    assert data.short
    assert data.failed == []


def page(folder: Path, *words: str) -> Data:
    """Measure what takes no second, a part of the suite without a server."""
    file = folder / "part.json"
    usual = ["--quick", "--only", "files", "--parts", str(folder / "parts")]
    assert main([*usual, "--docs", str(folder), "--json", str(file), *words]) == 0
    return Data.read(file)


def test_a_run_that_was_cut_goes_on_behind_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: Round[Folder]) -> Measured:
        raise KeyboardInterrupt

    def made_up(_: Round[Folder]) -> Measured:
        return {HAND_OVER: [1.0, 2.0]}

    def measured_by(measure: Callable[[Round[Folder]], Measured]) -> Suite[Folder]:
        suite = usual()
        hand_over = replace(suite.scenarios["hand-over"], measure=measure)
        return replace(suite, scenarios=suite.scenarios | {"hand-over": hand_over})

    usual = SUITES["files"]
    monkeypatch.setitem(SUITES, "files", lambda: measured_by(cut))
    with pytest.raises(KeyboardInterrupt):
        page(tmp_path)
    monkeypatch.setitem(SUITES, "files", lambda: measured_by(made_up))
    first = page(tmp_path, "--resume", "--minutes", "0")
    assert list(first.values["files"]) == ["alone"]
    assert first.notes == ["`hand-over` (files) is left out: the run had no time left."]
    capsys.readouterr()
    whole = page(tmp_path, "--resume")
    assert list(whole.values["files"]) == ["alone", "hand-over"]
    assert whole.values["files"]["alone"] == first.values["files"]["alone"]
    assert "files/alone" not in capsys.readouterr().err
    assert whole.notes == []
    with pytest.raises(SystemExit, match="at another commit or by other options"):
        page(tmp_path, "--resume", "--seconds", "1")


def test_without_time_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing was measured"):
        page(tmp_path, "--minutes", "0")


def test_the_estimate_follows_the_speed_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    plan = {("redis", "hand-over"): 30, ("redis", "waiters"): 10, ("sql", "alone"): 5}
    usual = round_seconds("redis", "hand-over")
    progress = Progress(plan, 1.0, 1000.0, lambda *_: None, lambda: now)
    assert progress.starts("redis", ["hand-over", "waiters"])
    for number in range(21):
        progress.begins("hand-over", number, redis.OURS, "asyncio")
        now += 2 * usual  # a slow machine
    printed = capsys.readouterr().err.splitlines()
    rest = 10 * usual + 10 * round_seconds("redis", "waiters")
    seconds = 2 * (rest + 5 * round_seconds("sql", "alone")) + START_SECONDS["sql"]
    minutes = f"{int(seconds) // 60}:{int(seconds) % 60:02}"
    assert printed[-1] == (
        f"{int(now - 2 * usual) // 60}:{int(now - 2 * usual) % 60:02} min,"
        f" about {minutes} min left: 21 of 45, redis/hand-over 20, {redis.OURS}"
    )
    now = 999.0
    assert not progress.wants("waiters")
    assert not progress.starts("sql", ["alone"])
    assert progress.left_out == [("redis", "waiters"), ("sql", "alone")]


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such suite or scenario: nothing"):
        main(["--only", "nothing"])


def test_a_plot_needs_figures() -> None:
    empty = invented({"alone": {redis.OURS: {CYCLES: [[1.0]]}}})
    for name in PLOTS:
        with pytest.raises(NotMeasured):
            svg(name, empty)
