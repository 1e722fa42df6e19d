"""Tests that take much of the machine's time: ``nox -s long`` alone runs them.

What such a test shows, a shorter one shows as well, or the same one on another store or
of another seed: the full tests have that. All of them run before a release.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

RUNS = bool(os.environ.get("LONG"))
"""Whether they run now."""

LONG: dict[str, dict[str, tuple[str, ...]]] = {
    "the only node stops and goes on, and `nox -s soak` has nodes that die": {
        "faults/test_cassandra.py": ("",),
        "faults/test_cassandra_clocks.py": ("",),
        "backends/cassandra/test_data_centres.py": ("",),
        "backends/cassandra/test_tls.py": ("test_a_node_that_wants_a_certificate",),
        "backends/cassandra/test_stopped_nodes.py": (
            "test_a_stopped_node_of_three_holds_nobody_up_for_long",
        ),
    },
    "other stores have the same processes, kills and judges": {
        "faults/test_databases.py": (
            "test_killed_stopped_and_cut_off[mariadb",
            "test_killed_stopped_and_cut_off[mysql",
            "test_the_judge_sees_who_does_not_ask[mariadb",
            "test_the_judge_sees_who_does_not_ask[mysql",
        ),
        "faults/test_files.py": ("test_killed_holders[?shared=yes",),
        "faults/test_leader.py": (
            "test_one_leads_whatever_happens[postgresql",
            "test_one_leads_whatever_happens[sqlite",
        ),
        "faults/test_moving.py": ("test_a_release_excludes_the_one_before[redis to",),
        "faults/test_processes.py": ("test_killed_holders[sqlite",),
        "faults/test_pushed_grants.py": ("test_on_postgresql",),
        "faults/test_redis_cluster.py": (
            "test_a_node_is_replaced_while_four_processes_lock[stop",
        ),
        "faults/test_redis_failover.py": (
            "test_while_four_processes_lock[lost",
            "test_while_four_processes_lock[stop",
        ),
        "faults/test_semaphore.py": (
            "test_never_more_holders_than_permits[postgres",
            "test_never_more_holders_than_permits[sqlite",
        ),
        "backends/cassandra/test_store.py": (
            "test_eight_processes_take_turns[pair-asyncio",
            "test_eight_processes_take_turns[type-trio",
        ),
        "faults/test_several_locks.py": (
            "test_a_thousand_random_choices_of_eight[sqlite",
        ),
        "recipes/test_row_lock_many_waiters.py": (
            "test_processes[mysql",
            "test_processes[sqlite",
            "test_random_operations[mysql",
        ),
        "compatibility/test_two_versions.py": (
            "test_two_patch_versions_share_a_store[files",
            "test_two_patch_versions_share_a_store[postgresql",
            "test_versions_of_two_layouts_refuse_each_other[files",
            "test_versions_of_two_layouts_refuse_each_other[postgresql",
        ),
    },
    "every other store runs the command": {
        "cli/test_run.py": (
            "test_conflict_is_75_and_says_who[cassandra",
            "test_environment[cassandra",
            "test_readers_share[cassandra",
            "test_runs_of_one_name_exclude_each_other[cassandra",
            "test_signal_while_waiting_leaves_the_queue[cassandra",
        ),
        "cli/bench/test_bench.py": (
            "test_a_table[cassandra",
            "test_a_table[files",
            "test_a_table[oracle",
        ),
        "cli/test_demo.py": (
            "test_no_key_is_left_on_redis",
            "test_without_locks_violations_are_found_on_redis_as_well",
        ),
        "cli/test_run_once.py": (
            "test_a_command_that_failed_is_run_again_with_retry[postgresql",
            "test_a_command_that_failed_is_run_again_with_retry[redis",
            "test_a_holder_that_is_killed_with_at_most[postgresql",
            "test_a_holder_that_is_killed_with_at_most[redis",
            "test_machines_at_the_same_time[redis",
            "test_machines_whose_clocks_differ_by_days[redis",
        ),
        "cli/test_list_show_break.py": (
            "test_a_foreign_program[cassandra",
            "test_a_prefix[cassandra",
            "test_a_slash_in_the_type[cassandra",
            "test_break_a_foreign_program[cassandra",
        ),
    },
    "one of the signals ends the processes, and shorter tests have the others": {
        "cli/bench/test_bench.py": (
            "test_interrupted_among_processes_nothing_is_held[1]",
            "test_interrupted_among_processes_nothing_is_held[2]",
            "test_interrupted_among_tasks_nothing_is_held[1]",
        ),
        "cli/test_demo.py": (
            "test_interrupted_it_leaves_nothing_in_a_store_of_ones_own[1]",
            "test_interrupted_it_leaves_nothing_in_a_store_of_ones_own[2]",
        ),
    },
    "the random histories of other seeds pass with the scripts as they are": {
        "backends/redis/test_differential.py": (
            "test_the_unchanged_scripts_pass_the_controls",
        ),
        "backends/redis/test_differential_pair.py": (
            "test_the_unchanged_scripts_pass_the_controls",
        ),
        "backends/redis/test_differential_permits.py": (
            "test_the_unchanged_scripts_pass_the_controls",
        ),
    },
    "with purges they do all that they do without, and more": {
        "core/test_controls.py": ("test_nothing_broken_passes[False",),
        "core/test_random_histories.py": (
            "test_every_step_of_every_story_is_just[False",
        ),
    },
    "Redis and etcd are compared: one has the core as scripts, one as a table": {
        "traces/test_stores.py": ("test_cassandra", "test_postgresql", "test_sqlite"),
    },
    "the other sides and loops are cut at every byte as well": {
        "faults/test_redis_cut_connections.py": (
            "test_cut_at_every_byte[queue-16-client-trio",
            "test_cut_at_every_byte[queue-16-server-trio",
            "test_cut_at_every_byte[release-2-server-trio",
            "test_cut_at_every_byte[wait-2-server-trio",
        ),
    },
    "the loops and the fixtures that are tried have every scope": {
        "testing/test_plugin.py": (
            "test_the_loop_is_that_of_the_test[class-session",
            "test_the_loop_is_that_of_the_test[package-function",
            "test_the_loop_is_that_of_the_test[session-function",
        ),
    },
    "the suite of 12.2 has the older SQL, and the doubles' other tests the newer": {
        "conformance/test_oracle_23ai.py": ("",),
        "backends/oracle/test_second_server.py": (
            "test_random_histories_agree_with_the_core",
        ),
    },
    "tests/backends/redis/test_tls.py has what TLS changes": {
        "conformance/test_redis_tls.py": ("",),
    },
    "the suites on Redis and on files are tried, and with them what all suites share": {
        "benchmarks/test_cassandra.py": ("test_quick_measures_every_peer",),
        "benchmarks/test_etcd.py": ("test_quick_measures_every_peer",),
        "benchmarks/test_local.py": (
            "test_quick_measures_every_peer_in_every_scenario[trio",
        ),
        "benchmarks/test_redis.py": (
            "test_quick_measures_every_peer_of_a_scenario[one-key",
            "test_quick_measures_ours_in_every_other_scenario",
        ),
        "benchmarks/test_sql.py": (
            "test_a_waiter_on_mariadb_is_notified_over_redis",
            "test_quick_measures_every_peer",
        ),
    },
    "servers fork, and greenlets run, in the same way for every store": {
        "examples/test_sync.py": (
            "test_celery_with_forked_workers[postgresql",
            "test_celery_with_forked_workers[sqlite",
            "test_flask_under_gunicorn[postgresql",
        ),
        "sync/test_gevent.py": (
            "test_a_program_of_greenlets[postgresql",
            "test_a_program_of_greenlets[sqlite",
        ),
    },
    "Django's and SQLAlchemy's statements are tested on each database by one of them": {
        "recipes/test_occupancy_faults.py": (
            "test_one_at_a_time_and_a_killed_one_is_in_nobodys_way[django-mariadb",
            "test_one_at_a_time_and_a_killed_one_is_in_nobodys_way[django-sqlite",
            "test_one_at_a_time_and_a_killed_one_is_in_nobodys_way[sqlalchemy-mysql",
            "test_one_at_a_time_and_a_killed_one_is_in_nobodys_way[sqlalchemy-postgresql",
        ),
    },
}
"""Why, the file, and how the names of its tests begin."""


_NAMES = tuple(
    f"tests/{file}::{name}"
    for files in LONG.values()
    for file, names in files.items()
    for name in names
)


def is_long(item: pytest.Item) -> bool:
    """Whether a test is one of them."""
    return item.nodeid.startswith(_NAMES) or bool(item.get_closest_marker("long"))


def mostly_long(values: Iterable[Any], every: int) -> list[Any]:
    """Parameters of which the full tests have the first, and each ``every``-th."""
    return [
        value if number % every == 0 else pytest.param(*_tuple(value), marks=_LONG)
        for number, value in enumerate(values)
    ]


_LONG = pytest.mark.long


def _tuple(value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return value if isinstance(value, tuple) else (value,)
