"""What all tests share: the event loops they run on."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["tests.servers.fix_cassandra", "tests.servers.fix_redis"]

# A shell starts background jobs with these ignored, and the processes that tests start
# would inherit that.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

# A shared machine is slow at times: how long one example took proves nothing.
settings.register_profile("project", deadline=None, print_blob=True)
settings.load_profile("project")

LOOPS = (
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
)


# Scope module as anyio's own, so that wider async fixtures can build on it.
@pytest.fixture(scope="module", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The loops under every test marked anyio; one not installed fails the test."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


#: Left out of `nox -s fast` beside what is marked slow: real processes, and axes that
#: seldom tell more than the ones that stay (every store and both libraries).
SLOW = (
    "tests/backends/redis/test_blocking.py",
    "tests/backends/redis/test_client_errors.py",
    "tests/backends/redis/test_cluster",
    "tests/backends/redis/test_connecting.py",
    "tests/backends/redis/test_differential",
    "tests/backends/redis/test_lost.py",
    "tests/backends/redis/test_other_programs.py",
    "tests/backends/redis/test_replicas.py",
    "tests/backends/redis/test_rights.py",
    "tests/backends/redis/test_sentinel.py",
    "tests/backends/redis/test_server_faults.py",
    "tests/benchmarks/",
    "tests/cli/test_demo.py",
    "tests/cli/test_look.py",
    "tests/cli/test_main.py",
    "tests/cli/test_run.py",
    "tests/cli/test_signals.py",
    "tests/conformance/test_cluster.py",
    "tests/conformance/test_controls.py",
    "tests/conformance/test_matrix.py",
    "tests/conformance/test_redis",
    "tests/conformance/test_sentinel.py",
    "tests/conformance/test_redis_pairs.py",
    "tests/core/test_controls.py",
    "tests/docs/test_blocks.py",
    "tests/faults/test_processes.py",
    "tests/faults/test_redis_",
    "tests/recipes/test_set_costs.py",
    "tests/recipes/test_set_failover.py",
    "tests/recipes/test_set_faults.py",
    "tests/recipes/test_set_limits.py",
    "tests/recipes/test_set_losses.py",
    "tests/recipes/test_set_others.py",
    "tests/recipes/test_set_replicas.py",
    "tests/recipes/test_set_rwlock_",
)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark them slow; the full tests run them all. Leave out what tells nothing."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        name = item.nodeid
        uvloop, trio = "[uvloop" in name or "-uvloop" in name, "[trio" in name
        if uvloop and item.get_closest_marker("no_uvloop"):
            left_out.append(item)
            continue
        kept.append(item)
        store = name.startswith(
            ("tests/conformance/test_", "tests/runtime/test_keeper")
        )
        fixtures: list[str] = getattr(item, "fixturenames", [])
        node = "cassandra_node" in fixtures  # takes eight seconds to start
        if name.startswith(SLOW) or uvloop or node or (trio and store):
            item.add_marker(pytest.mark.slow)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
