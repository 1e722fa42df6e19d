"""The benchmarks on SQL databases still run and are complete. No time is judged."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.measures import HAND_OVER, SERVED
from benchmarks.harness.report import Figures
from benchmarks.sql.__main__ import main
from benchmarks.sql.adapters import (
    FLOOR,
    MARIADB_OURS,
    MARIADB_WOKEN,
    MYSQL_OURS,
    NOTIFY,
    OURS,
)
from benchmarks.sql.bars import BARS
from benchmarks.sql.scenarios import CYCLE, SCENARIOS, STATEMENTS
from tests.benchmarks.suites import (
    of_scenarios,
    quick,
    quick_with_every_peer,
    samples,
    verdict_by,
)

CHOSEN = ("alone", "waiters")
"""The others are the same for every suite, and run with other servers' tests."""


@pytest.mark.slow
def test_quick_measures_every_peer(tmp_path: Path) -> None:
    """Of what every peer takes part in, and of what is counted."""
    about, figures = quick_with_every_peer("sql", tmp_path, CHOSEN, SCENARIOS, BARS)
    what_users_have_is_what_is_measured(about)
    everybody_gets_in_and_the_server_is_heard(figures)


def what_users_have_is_what_is_measured(about: dict[str, Any]) -> None:
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert about[name] == "on"
    assert about["innodb_flush_log_at_trx_commit"] == 1
    assert about["asyncpg"]
    assert about["fsync_us"] > 0


def everybody_gets_in_and_the_server_is_heard(figures: Figures) -> None:
    for peer in (OURS, MARIADB_OURS, MYSQL_OURS):
        assert figures.median("waiters", SERVED, peer) == 1000
        assert figures.median("waiters", STATEMENTS, peer) > 0  # places are kept


def test_without_postgresql_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.servers.postgresql._KEPT", tmp_path)
    with pytest.raises(SystemExit, match="apt-get install"):
        main(["--quick", "--scenario", "alone"])


verdict = partial(verdict_by, BARS)


def test_a_cycle_is_compared_within_each_repetition() -> None:
    of, what = ("alone", CYCLE), "alone: cycle, of the floor's"
    floor = samples(*of, FLOOR, 400, 4000, 400)  # the second was disturbed, for both
    held = verdict(what, floor, samples(*of, OURS, 520, 5200, 900))
    assert (held.figure, held.holds) == (1.3, True)
    assert verdict(what, floor, samples(*of, OURS, 521, 5210, 900)).holds is False


def test_a_hand_over_is_judged_by_its_middle() -> None:
    of, what = ("hand-over", HAND_OVER), "hand-over: p50, of the bare NOTIFY's"
    floor = samples(*of, NOTIFY, 1, 1, 9)
    assert verdict(what, floor, samples(*of, OURS, 1.3, 1.3, 90)).holds is True
    assert verdict(what, floor, samples(*of, OURS, 1.4, 1.4, 0.1)).holds is False


def test_mariadb_is_judged_where_its_waiters_are_notified() -> None:
    of, what = ("hand-over", HAND_OVER), "hand-over: MariaDB, woken over Redis: p50"
    polls = samples(*of, MARIADB_OURS, 16.0)
    assert verdict(what, polls).holds is None
    assert verdict(what, polls, samples(*of, MARIADB_WOKEN, 2.9)).holds is True


@pytest.mark.slow
def test_a_waiter_on_mariadb_is_notified_over_redis(tmp_path: Path) -> None:
    words = [*of_scenarios("hand-over"), "--peer", MARIADB_WOKEN]
    _, measured = quick("sql", tmp_path, *words)
    assert len(Figures(measured).values("hand-over", HAND_OVER, MARIADB_WOKEN)) == 5
