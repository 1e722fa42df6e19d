"""The pytest plugin in runs of its own, with every runner."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["aiorwlock_remote.testing.plugin"]\n'
FUNCTION = "asyncio_default_fixture_loop_scope = function\n"
STRICT = "[pytest]\nfilterwarnings = error\n"

TESTS = """
import anyio
import pytest
from anyio import sleep_forever
from aiorwlock_remote import LockLost, LockTimeout, Locks
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = [MARK]
seen = set()

async def test_locks(memory_locks):
    assert isinstance(memory_locks, Locks)
    async with memory_locks.mutex("order", 42) as held:
        held.check()

async def test_rival(memory_locks, rival_locks):
    async with rival_locks.mutex("order", 42):
        with pytest.raises(LockTimeout):
            await memory_locks.mutex("order", 42).acquire(timeout=0)

async def test_lost(memory_locks, lock_store):
    with pytest.raises(LockLost):
        async with memory_locks.mutex("order", 42):
            lock_store.lose("order", 42)
            await anyio.sleep_forever()

async def test_store(lock_store, memory_locks):
    assert isinstance(lock_store, FaultyMemory)
    async with lock_store.connect() as more, memory_locks.mutex("order", 42):
        assert await more.mutex("order", 42).locked()

@pytest.mark.parametrize("turn", [1, 2])
async def test_each_has_its_own(lock_store, memory_locks, turn):
    assert await memory_locks.acquire_mutex_lock("left", 1, "behind")

@pytest.fixture
async def held(memory_locks):
    held = await memory_locks.mutex("order", 42).acquire()
    yield held
    await held.release()

async def test_a_fixture_of_ones_own(held, rival_locks):
    held.check()
    assert await rival_locks.mutex("order", 42).locked()
"""
COUNT = 7


def strict(pytester: pytest.Pytester, mark: str, more: str = "") -> None:
    """Return the tests with that mark; any warning is an error."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini(STRICT + more)
    pytester.makepyfile(TESTS.replace("MARK", mark))


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """Run pytest in a process of its own, as users do."""
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *words)


def test_ordinary_tests(pytester: pytest.Pytester) -> None:
    strict(pytester, "")
    pytester.makepyfile(
        """
        import pytest
        from aiorwlock_remote.sync import LockLost, LockTimeout

        def test_lost(sync_memory_locks, lock_store):
            with pytest.raises(LockLost):
                with sync_memory_locks.mutex("order", 42) as held:
                    lock_store.lose("order", 42)
                    held.check()

        def test_rival(sync_memory_locks, sync_rival_locks):
            with sync_rival_locks.mutex("order", 42):
                with pytest.raises(LockTimeout):
                    sync_memory_locks.mutex("order", 42).acquire(timeout=0)

        def test_wrong_kind(memory_locks): ...
        """
    )
    done = run(pytester, "-p", "no:asyncio", "-p", "no:anyio")
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*an ordinary one needs sync_memory_locks*"])


def test_by_anyio_on_both_libraries(pytester: pytest.Pytester) -> None:
    strict(pytester, "pytest.mark.anyio")
    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=2 * COUNT)


def test_by_anyio_beside_pytest_asyncio(pytester: pytest.Pytester) -> None:
    mode = f"asyncio_mode = strict\n{FUNCTION}"
    strict(pytester, "pytest.mark.anyio", mode)
    run(pytester).assert_outcomes(passed=2 * COUNT)


def test_by_pytest_asyncio_in_auto_mode(pytester: pytest.Pytester) -> None:
    strict(pytester, "", f"asyncio_mode = auto\n{FUNCTION}")
    run(pytester).assert_outcomes(passed=COUNT)


def test_by_pytest_asyncio_in_strict_mode(pytester: pytest.Pytester) -> None:
    strict(pytester, "pytest.mark.asyncio", f"asyncio_mode = strict\n{FUNCTION}")
    path = pytester.path / "test_by_pytest_asyncio_in_strict_mode.py"
    text = path.read_text("utf-8")
    own = "@__import__('pytest_asyncio').fixture\nasync def held"
    path.write_text(text.replace("@pytest.fixture\nasync def held", own), "utf-8")
    run(pytester).assert_outcomes(passed=COUNT)


@pytest.mark.parametrize("mark", ["pytest.mark.trio", ""], ids=["mark", "mode"])
def test_by_pytest_trio_beside_pytest_asyncio(
    pytester: pytest.Pytester, mark: str
) -> None:
    mode = f"asyncio_mode = strict\n{FUNCTION}"
    strict(pytester, mark, mode if mark else f"{mode}trio_mode = true\n")
    pytester.makepyfile(
        test_runner="""
        import pytest
        import sniffio

        @pytest.mark.trio
        async def test_the_locks_are_of_the_tests_loop(memory_locks):
            assert sniffio.current_async_library() == "trio"
            async with memory_locks.mutex("order", 42) as held:
                held.check()
        """
    )
    run(pytester).assert_outcomes(passed=COUNT + 1)


def test_loops_that_are_wider_than_a_test(pytester: pytest.Pytester) -> None:
    scope = "module"
    more = (
        "asyncio_mode = auto\n"
        f"asyncio_default_fixture_loop_scope = {scope}\n"
        f"asyncio_default_test_loop_scope = {scope}\n"
    )
    strict(pytester, "", more)
    run(pytester).assert_outcomes(passed=COUNT)


@pytest.mark.parametrize("fixtures", ["function", "session"])
@pytest.mark.parametrize("scope", ["class", "package", "session"])
def test_the_loop_is_that_of_the_test(
    pytester: pytest.Pytester, scope: str, fixtures: str
) -> None:
    """Whatever loop a project's own fixtures have."""
    default = f"asyncio_default_fixture_loop_scope = {fixtures}\n"
    strict(pytester, "", f"asyncio_mode = strict\n{default}")
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.asyncio(loop_scope="{scope}")
        async def test_marked(memory_locks, rival_locks):
            async with memory_locks.mutex("order", 42):
                assert await rival_locks.mutex("order", 42).locked()

        @pytest.mark.asyncio
        async def test_plain(memory_locks):
            async with memory_locks.mutex("order", 42) as held:
                held.check()
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_a_test_without_a_runner_is_an_error(pytester: pytest.Pytester) -> None:
    """The store works with any runner; open locks need a known one."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import asyncio

        def test_open(memory_locks):
            pass

        def test_by_hand(lock_store):
            async def use():
                async with lock_store.connect() as locks, locks.mutex("order", 42):
                    pass

            asyncio.run(use())
        """
    )
    result = run(pytester, "-p", "no:asyncio")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*memory_locks needs a test that anyio, *"])


def test_the_plugin_lists_its_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    output = run(pytester, "--fixtures").stdout.str()
    names = "memory_locks", "rival_locks", "sync_memory_locks", "sync_rival_locks"
    for name in ("lock_store", *names):
        assert f"\n{name} -- " in output
    assert output.count("_locks -- ") == len(names)
    assert "_locks_" not in output


def test_unasked_it_is_not_there(pytester: pytest.Pytester) -> None:
    """No entry point loads it: an installed library costs nothing."""
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            assert "aiorwlock_remote" not in sys.modules

        def test_no_fixture(memory_locks):
            pass
        """
    )
    run(pytester).assert_outcomes(passed=1, errors=1)


def test_the_library_does_not_import_pytest() -> None:
    code = (
        "import sys, aiorwlock_remote.testing.memory, aiorwlock_remote.testing.faults;"
        "sys.exit('pytest' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
