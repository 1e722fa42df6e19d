"""Pytest plugin: fixtures for tests of programs that use locks.

Load it in the topmost ``conftest.py``::

    pytest_plugins = ["aiorwlock_remote.testing.plugin"]

The fixtures ``memory_locks`` and ``rival_locks`` work in tests that anyio's plugin runs
(on asyncio or trio), and in tests that pytest-asyncio or pytest-trio runs;
``sync_memory_locks`` and ``sync_rival_locks`` in ordinary tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aiorwlock_remote import Locks
    from aiorwlock_remote.sync import Locks as SyncLocks
    from aiorwlock_remote.testing.memory import FaultyMemory

# No entry point makes pytest load this plugin: that would import the library, and
# rewrite its asserts, in every test run on every machine that has it installed.
#
# anyio and pytest-asyncio open async fixtures each in its own way, so these are
# registered once for each, and for pytest-asyncio once for each scope of a loop. The
# runner and the loop of the test decide which one it gets. pytest-trio opens the plain
# ones, as anyio does.
_PLAIN, _ASYNCIO = "_plain", "_asyncio_"
_LOOPS = "function", "class", "module", "package", "session"
_Mark = Callable[..., Any]


@pytest.fixture
def lock_store() -> FaultyMemory:
    """Return a new in-memory lock store with fault injection (``FaultyMemory``)."""
    from aiorwlock_remote.testing.memory import FaultyMemory  # noqa: PLC0415

    return FaultyMemory()


@pytest.fixture
def memory_locks(request: pytest.FixtureRequest) -> Locks:
    """Return a ``Locks`` on the store ``lock_store``, for the code under test."""
    return _opened(request, "memory_locks")


@pytest.fixture
def rival_locks(request: pytest.FixtureRequest) -> Locks:
    """Return a second ``Locks`` on the store ``lock_store``; no request of it fails."""
    return _opened(request, "rival_locks")


@pytest.fixture
def sync_memory_locks(lock_store: FaultyMemory) -> Iterator[SyncLocks]:
    """Return a ``Locks`` of the synchronous API on the store ``lock_store``."""
    from aiorwlock_remote.sync import connect  # noqa: PLC0415

    with connect(lock_store) as locks:
        yield locks


@pytest.fixture
def sync_rival_locks(lock_store: FaultyMemory) -> Iterator[SyncLocks]:
    """Return a second one, as in another process; no request of it fails."""
    from aiorwlock_remote.sync import connect  # noqa: PLC0415

    with connect(lock_store.rival) as locks:
        yield locks


def pytest_configure(config: pytest.Config) -> None:
    """Register plain fixtures, and those of pytest-asyncio if it is installed."""
    config.pluginmanager.register(_fixtures(_PLAIN, pytest.fixture))
    if _has_asyncio(config):
        import pytest_asyncio  # noqa: PLC0415 - perhaps not installed

        for scope in _LOOPS:
            mark = partial(pytest_asyncio.fixture, loop_scope=scope)
            config.pluginmanager.register(_fixtures(_ASYNCIO + scope, mark))


def _has_asyncio(config: pytest.Config) -> bool:
    return _option(config, "asyncio_mode") is not None


def _option(config: pytest.Config, name: str) -> object:
    try:
        return config.getini(name)
    except (KeyError, ValueError):  # the option is not registered
        return None


def _loop_of(request: pytest.FixtureRequest) -> str:
    mark = request.node.get_closest_marker("asyncio")
    asked = mark.kwargs.get("loop_scope") if mark else None
    default = _option(request.config, "asyncio_default_test_loop_scope")
    return str(asked or default or "function")


def _runs_plain(request: pytest.FixtureRequest) -> bool:
    # Before pytest-asyncio is looked for: it may be installed beside the runner that
    # the test has (test_by_pytest_trio_beside_pytest_asyncio).
    if "anyio_backend" in request.fixturenames:
        return True
    of_trio = _option(request.config, "trio_mode") is not None
    return of_trio and request.node.get_closest_marker("trio") is not None


def _opened(request: pytest.FixtureRequest, name: str) -> Locks:
    if _runs_plain(request):
        locks: Locks = request.getfixturevalue(f"_{name}{_PLAIN}")
    elif _has_asyncio(request.config):
        loop = _loop_of(request)
        locks = request.getfixturevalue(f"_{name}{_ASYNCIO}{loop}")
    else:
        pytest.fail(
            f"{name} needs a test that anyio, pytest-asyncio or pytest-trio runs;"
            f" an ordinary one needs sync_{name}",
            pytrace=False,
        )
    return locks


def _fixtures(runner: str, mark: _Mark) -> ModuleType:
    async def memory_locks(lock_store: FaultyMemory) -> AsyncIterator[Locks]:
        async with lock_store.connect() as locks:
            yield locks

    async def rival_locks(lock_store: FaultyMemory) -> AsyncIterator[Locks]:
        async with lock_store.connect_rival() as locks:
            yield locks

    plugin = ModuleType(f"{__name__}{runner}")
    for function in (memory_locks, rival_locks):
        # ``pytest --fixtures`` does not list names that begin with an underscore.
        name = f"_{function.__name__}{runner}"
        setattr(plugin, name, mark(name=name)(function))
    return plugin
