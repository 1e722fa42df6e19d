"""Fixtures for tests of programs that use locks; see ``FaultyMemory``.

In the topmost ``conftest.py``::

    pytest_plugins = ["aiorwlock_remote.testing.plugin"]

No entry point makes pytest load it: that would import this library, and have pytest
rewrite its asserts, in every run of everybody who has it installed.

``memory_locks`` and ``rival_locks`` work in tests that anyio's plugin runs, on asyncio
and on trio, and in those of pytest-asyncio. Each of the two opens async fixtures in its
own way, so they are there once for each, and the test's runner decides; with
pytest-asyncio once for each scope of a loop, and the test's loop decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aiorwlock_remote import Locks
    from aiorwlock_remote.testing.memory import FaultyMemory

_ANYIO, _ASYNCIO = "_anyio", "_asyncio_"
_LOOPS = "function", "class", "module", "package", "session"
_Mark = Callable[..., Any]


@pytest.fixture
def lock_store() -> FaultyMemory:
    """A store of locks in memory, fresh for this test; fails when told."""
    from aiorwlock_remote.testing.memory import FaultyMemory  # noqa: PLC0415

    return FaultyMemory()


@pytest.fixture
def memory_locks(request: pytest.FixtureRequest) -> Locks:
    """Locks of ``lock_store``, for what is tested."""
    return _opened(request, "memory_locks")


@pytest.fixture
def rival_locks(request: pytest.FixtureRequest) -> Locks:
    """Locks of ``lock_store`` as another process has them, which never fail."""
    return _opened(request, "rival_locks")


def pytest_configure(config: pytest.Config) -> None:
    """Those for anyio; those for pytest-asyncio, if it is there."""
    config.pluginmanager.register(_fixtures(_ANYIO, pytest.fixture))
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
    except (KeyError, ValueError):  # nobody knows the option
        return None


def _loop_of(request: pytest.FixtureRequest) -> str:
    """The scope of the loop that pytest-asyncio runs the test in."""
    mark = request.node.get_closest_marker("asyncio")
    asked = mark.kwargs.get("loop_scope") if mark else None
    default = _option(request.config, "asyncio_default_test_loop_scope")
    return str(asked or default or "function")


def _opened(request: pytest.FixtureRequest, name: str) -> Locks:
    if "anyio_backend" in request.fixturenames:
        locks: Locks = request.getfixturevalue(f"_{name}{_ANYIO}")
    elif _has_asyncio(request.config):
        loop = _loop_of(request)
        locks = request.getfixturevalue(f"_{name}{_ASYNCIO}{loop}")
    else:
        pytest.fail(
            f"{name} is for tests that anyio or pytest-asyncio runs;"
            " elsewhere: async with lock_store.connect() as locks",
            pytrace=False,
        )
    return locks


def _fixtures(runner: str, mark: _Mark) -> ModuleType:
    """A plugin with the fixtures of one runner, marked as it wants them."""

    async def memory_locks(lock_store: FaultyMemory) -> AsyncIterator[Locks]:
        async with lock_store.connect() as locks:
            yield locks

    async def rival_locks(lock_store: FaultyMemory) -> AsyncIterator[Locks]:
        async with lock_store.connect_rival() as locks:
            yield locks

    plugin = ModuleType(f"{__name__}{runner}")
    for function in (memory_locks, rival_locks):
        name = f"_{function.__name__}{runner}"  # pytest does not list such names
        setattr(plugin, name, mark(name=name)(function))
    return plugin
