"""What all tests share: the event loops they run on."""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from aiorwlock_remote.testing.conformance.cases.base import renew_often
from tests.long import RUNS as LONG_ONES_RUN
from tests.long import is_long
from tests.loops import (
    CROWD_CASES,
    LOOPS,
    SLEEPING,
    has_crowd,
    is_in_share,
    is_on,
    is_sleeper,
    turn_of,
)
from tests.servers import chosen
from tests.servers.shared import file_lock

pytest_plugins = [
    "tests.recipes.fix_occupied",
    "tests.servers.fix_cassandra",
    "tests.servers.fix_chromium",
    "tests.servers.fix_etcd",
    "tests.servers.fix_mariadb",
    "tests.servers.fix_mysql",
    "tests.servers.fix_oracle",
    "tests.servers.fix_postgresql",
    "tests.servers.fix_redis",
    "tests.servers.fix_ring",
]

# A shell starts background jobs with these ignored, nohup with SIGHUP, and what tests
# start would inherit that.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

# A shared machine is slow at times: how long one example took proves nothing.
settings.register_profile("project", deadline=None, print_blob=True)
settings.load_profile("project")


# Scope module as anyio's own, so that wider async fixtures can build on it.
@pytest.fixture(scope="module", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The loops under every test marked anyio; one not installed fails the test."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(scope="module", params=[loop for loop in LOOPS if loop.id != "uvloop"])
def _fast_anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def pytest_configure(config: pytest.Config) -> None:
    """Take the tests on uvloop from the developer's loop before they are made."""
    if config.getoption("markexpr") == "not slow":
        globals()["anyio_backend"] = _fast_anyio_backend


@pytest.fixture
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what the keeper finds; see ``renew_often``."""
    renew_often(monkeypatch)


#: Left out of `nox -s fast` beside what is marked slow: real processes, and axes that
#: seldom tell more than the ones that stay (every store and both libraries).
SLOW = (
    "tests/backends/oracle/test_grammar.py",
    "tests/backends/postgresql/test_startup_errors.py",
    "tests/backends/redis/test_client.py",
    "tests/backends/redis/test_client_errors.py",
    "tests/backends/redis/test_client_valkey.py",
    "tests/backends/redis/test_cluster",
    "tests/backends/redis/test_connection_close.py",
    "tests/backends/redis/test_connection_random_histories.py",
    "tests/backends/redis/test_connector.py",
    "tests/backends/redis/test_differential",
    "tests/backends/redis/test_dns.py",
    "tests/backends/redis/test_lost_connection.py",
    "tests/backends/redis/test_misleading_nodes.py",
    "tests/backends/redis/test_missing_rights.py",
    "tests/backends/redis/test_other_programs.py",
    "tests/backends/redis/test_outage_log.py",
    "tests/backends/redis/test_planned_failover.py",
    "tests/backends/redis/test_renewal_abort.py",
    "tests/backends/redis/test_renewal_loop.py",
    "tests/backends/redis/test_replica_acks.py",
    "tests/backends/redis/test_rights.py",
    "tests/backends/redis/test_sentinel",
    "tests/backends/redis/test_server_faults.py",
    "tests/backends/redis/test_slot_router.py",
    "tests/backends/redis/test_subscriptions.py",
    "tests/backends/test_refused_threads.py",
    "tests/backends/test_sqlite_hostile.py",
    "tests/benchmarks/",
    "tests/cas/test_pushed_windows.py",
    "tests/cas/test_random_histories.py",
    "tests/cli/bench/test_bench.py",
    "tests/cli/test_board.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_doctor.py",
    "tests/cli/test_exporter.py",
    "tests/cli/test_list_show_break.py",
    "tests/cli/test_main.py",
    "tests/cli/test_run",
    "tests/cli/test_signals.py",
    "tests/cli/test_worker_process.py",
    "tests/cli/watch/test_watch.py",
    "tests/conformance/test_cassandra",
    "tests/conformance/test_cluster.py",
    "tests/conformance/test_controls.py",
    "tests/conformance/test_every_case.py",
    "tests/conformance/test_files.py",
    "tests/conformance/test_mariadb.py",
    "tests/conformance/test_matrix.py",
    "tests/conformance/test_mysql.py",
    "tests/conformance/test_oracle",
    "tests/conformance/test_postgresql",
    "tests/conformance/test_redis",
    "tests/conformance/test_redis_pairs.py",
    "tests/conformance/test_sentinel.py",
    "tests/conformance/test_sqlite.py::TestSqlite::TestProcess",
    "tests/core/test_controls.py",
    "tests/core/test_mode_queue.py::test_whatever_happens_nothing_is_left_behind[True",
    "tests/core/test_permit_machine.py::test_every_step_of_every_history_is_just",
    "tests/core/test_random_histories.py::test_every_step_of_every_story_is_just",
    "tests/core/test_random_histories.py::test_from_any_state_every_fair_waiter_is_served",
    "tests/core/test_random_histories.py::test_nobody_starves_while_others_come_and_go",
    "tests/docs/test_blocks.py",
    "tests/docs/test_testing_page.py",
    "tests/embedded/test_boot_change.py",
    "tests/embedded/test_purge.py",
    "tests/faults/test_paused_holder.py",
    "tests/faults/test_processes.py",
    "tests/faults/test_redis_",
    "tests/integrations/test_django_row_",
    "tests/integrations/test_fastapi_waiting.py::test_bodies_and_hangups",
    "tests/integrations/test_requests.py",
    "tests/integrations/test_sqlalchemy_row_",
    "tests/locks/test_raising_callbacks.py",
    "tests/recipes/test_occupancy.py",
    "tests/recipes/test_occupancy_",
    "tests/recipes/test_once.py",
    "tests/recipes/test_row_lock",
    "tests/recipes/test_set_costs.py",
    "tests/recipes/test_set_failover.py",
    "tests/recipes/test_set_faults.py",
    "tests/recipes/test_set_foreign_programs.py",
    "tests/recipes/test_set_limits.py",
    "tests/recipes/test_set_random_histories.py",
    "tests/recipes/test_set_rwlock_",
    "tests/runtime/test_controls.py",
    "tests/runtime/test_conversion.py::test_random_sequences",
    "tests/runtime/test_lease_keeper_random_histories.py",
    "tests/runtime/test_lease_keeper_threads.py",
    "tests/runtime/test_memory_growth.py::test_locks_opened_anew_leave_nothing",
    "tests/runtime/test_memory_growth.py::test_new_names_leave_nothing",
    "tests/runtime/test_parallel_renewals.py",
    "tests/runtime/test_wait_queue_random_histories.py",
    "tests/sync/test_conformance.py",
    "tests/sync/test_conformance.py::TestRedis",
    "tests/sync/test_conformance.py::TestSqlite",
    "tests/testing/test_checker.py::test_a_long_queue_is_judged_in_time",
    "tests/testing/test_plugin.py",
)

#: Fixtures that take seconds to start.
SERVERS = {
    "cassandra_node",
    "chromium",
    "db_server",
    "db_empty",
    "db_tables",
    "mariadb_server",
    "mysql_server",
    "oracle_double",
    "postgresql_server",
    "start_db",
    "start_mariadb",
    "start_mysql",
}


#: Many processes at work, or servers that are replaced.
CROWDED = {"cassandra_ring", "start_cluster", "start_sentinels"}

ENDED = count()
"""Tests that ended in this process."""
ROOT = Path(__file__).parents[1]
CROWD = Path(tempfile.gettempdir(), f"aiorwlock-remote-crowd-{os.getuid()}.lock")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """One crowd at a time: two of them would only measure how slow the machine is."""
    if item.get_closest_marker("crowd") is None:
        return (yield)
    with file_lock(CROWD):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tests that needed a second look, by name: each is to be mended."""
    looked_at: list[pytest.TestReport] = terminalreporter.getreports("rerun")
    names = sorted({report.nodeid for report in looked_at})
    if names:
        terminalreporter.section("second looks")
        for name in names:
            terminalreporter.line(name)


def pytest_report_header() -> list[str]:
    """The servers that the fixtures start in place of the machine's."""
    return list(chosen.versions())


def pytest_runtest_logfinish() -> None:
    """What pytest keeps of each test stays as well: some four hundred objects."""
    if next(ENDED) % 50 == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: no collection of garbage need look at it, now or later.

    Nothing may thaw it: each `gc.collect()` of a test would then take a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The developer's loop need not even read what it leaves out."""
    if config.getoption("markexpr") != "not slow" or not collection_path.is_file():
        return None
    if collection_path.relative_to(ROOT).as_posix().startswith(SLOW):
        return True
    is_module = collection_path.suffix == ".py"
    return (is_module and _all_slow(collection_path.read_text())) or None


def _all_slow(module: str) -> bool:
    """Whether a module's text marks all of its tests as slow."""
    marked = r"^pytestmark = [^]\n]*(\[[^]]*)?\bmark\.slow\b"
    return re.search(marked, module, re.MULTILINE) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """No item is made of a test for a loop on which it would tell nothing.

    To make them all, and to leave half of them out, takes each worker some seconds.
    """
    fixtures = metafunc._arg2fixturedefs.get("anyio_backend", ())
    if not fixtures or fixtures[-1].params is not LOOPS:
        return
    test = metafunc.definition
    kept = [param for param in LOOPS if not _left_out_on(test, str(param.id))]
    if len(kept) < len(LOOPS):
        # A mark takes the place of the fixture's own parameters. If no loop is kept,
        # one item has to be made, which ``_left_out`` leaves out.
        given = kept or LOOPS[:1]
        test.add_marker(pytest.mark.parametrize("anyio_backend", given, indirect=True))


def _left_out(item: pytest.Item) -> bool:
    """Whether it would tell nothing."""
    if chosen.is_left_out(item) or (is_long(item) and not LONG_ONES_RUN):
        return True
    if item.get_closest_marker("of_today") and not chosen.any_is():
        return True
    if "anyio_backend" not in getattr(item, "fixturenames", []):
        return False
    on = (str(loop.id) for loop in LOOPS if is_on(str(loop.id), item.nodeid))
    return _left_out_on(item, next(on, ""))


def _left_out_on(item: pytest.Item, loop: str) -> bool:
    """Whether a test would tell nothing on this loop."""
    only = item.get_closest_marker("only_on")
    if only is not None and only.args[0] != loop:
        return True
    if loop == "uvloop" and item.get_closest_marker("no_uvloop"):
        return True
    if f"::{CROWD_CASES}::" in item.nodeid:
        _, suite, *_ = item.nodeid.split("::")
        return not has_crowd(suite, loop)
    return _is_anothers_case(item, loop)


def _is_anothers_case(item: pytest.Item, loop: str) -> bool:
    """Whether another suite has this case, or this one has it on another loop."""
    share, in_turn, sleepers_in_turn = (
        item.get_closest_marker(name)
        for name in ("share", "in_turn", "sleepers_in_turn")
    )
    if share is None and in_turn is None and sleepers_in_turn is None:
        return False
    _, _, cases, parametrized = item.nodeid.split("::")
    test = parametrized.partition("[")[0]
    if is_sleeper(cases, test):
        in_turn = sleepers_in_turn or in_turn
    if share is not None and not is_in_share(cases, test, share.args[:2]):
        return True
    return in_turn is not None and loop not in turn_of(cases, test, *in_turn.args[1:])


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark them slow; the full tests run them all. Leave out what tells nothing."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        if _left_out(item):
            left_out.append(item)
            continue
        name = item.nodeid
        uvloop, trio = is_on("uvloop", name), "[trio" in name
        kept.append(item)
        store = name.startswith(
            ("tests/conformance/test_", "tests/runtime/test_lease_keeper")
        )
        fixtures: list[str] = getattr(item, "fixturenames", [])
        node = SERVERS & set(fixtures)
        sleeping = item.name.partition("[")[0] in SLEEPING
        if CROWDED & set(fixtures) or hasattr(
            getattr(item, "module", None), "WorkerPool"
        ):
            item.add_marker(pytest.mark.crowd)
        if is_long(item):
            item.add_marker(pytest.mark.long)
        if name.startswith(SLOW) or uvloop or node or sleeping or (trio and store):
            item.add_marker(pytest.mark.slow)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    # All crowds in one worker's share, and early: nobody waits for another's to end.
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("crowd") is None)
