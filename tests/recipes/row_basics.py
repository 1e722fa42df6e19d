"""The least that a row lock does, whatever the database and the way in."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import LockLost
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from tests.recipes.row_sites import (
    FREE,
    MODES,
    THEIRS,
    RowSite,
    ask,
    held_elsewhere,
    opened,
    try_elsewhere,
)
from tests.runtime.cancel_at import CancelAt


class RowLockBasics:
    """Subclasses give ``site``."""

    async def test_readers_share(self, site: RowSite) -> None:
        async with opened(site) as lock_of:
            one, two = lock_of(1), lock_of(1)
            async with one.read("report") as held:
                assert (held.mode, held.reason) == ("read", "report")
                assert site.plain.stands() == ("ReadLock", 1, "report")
                other = await held_elsewhere(two, "read")
                assert site.plain.state() == ("ReadLock", 2)
                state = await two.look()
                assert (state.mark, state.readers) == ("ReadLock", 2)
                await other.release("done")
                assert site.plain.stands() == ("ReadLock", 1, "done")
            assert site.plain.stands() == ("Unlock", 0, "report")

    async def test_a_writer_is_alone(self, site: RowSite) -> None:
        async with opened(site) as lock_of:
            lock = lock_of(1)
            async with lock.write("closing the books") as held:
                assert held.mode == "write"
                assert site.plain.stands() == ("WriteLock", 0, "closing the books")
                assert not site.plain.step("RLock")
                assert not site.plain.step("WLock")
                for mode in MODES:
                    assert await try_elsewhere(lock, mode) is None
                async with lock_of(2).write():
                    pass
            assert site.plain.state() == FREE
            assert site.plain.state(2) == FREE

    @pytest.mark.parametrize("mode", MODES)
    async def test_other_programs(self, site: RowSite, mode: str) -> None:
        """Published UPDATEs and ours exclude each other."""
        async with opened(site) as lock_of:
            lock = lock_of(1)
            async with ask(lock, mode)():
                assert not site.plain.step("WLock")
                assert site.plain.step("RLock") == (mode == "read")
            if mode == "read":
                assert site.plain.state() == ("ReadLock", 1)
                assert await lock.try_write() is None
                assert site.plain.step("RUnlock")
            assert site.plain.state() == FREE
            begin, end = THEIRS[mode]
            assert site.plain.step(begin)
            assert await lock.try_write() is None
            held = await lock.try_read()
            assert (held is None) == (mode == "write")
            if held is not None:
                await held.release()
            assert site.plain.step(end)
            assert site.plain.state() == FREE

    @pytest.mark.parametrize("mode", MODES)
    async def test_unlocked_by_another(self, site: RowSite, mode: str) -> None:
        """Whose lock it was cannot be told; but that it is gone can."""
        async with opened(site) as lock_of:
            with pytest.raises(LockLost) as caught:
                async with ask(lock_of(1), mode)():
                    assert site.plain.step(THEIRS[mode][1])
            assert caught.value.reason == "forced"
            with pytest.raises(ValueError, match="mine"):
                async with ask(lock_of(1), mode)():
                    site.plain.step(THEIRS[mode][1])
                    raise ValueError("mine")

    async def test_a_table_that_is_not_fit(self, site: RowSite) -> None:
        """Errors say what to run."""
        async with opened(site) as lock_of:
            with pytest.raises(Unsupported) as caught:
                await lock_of(1, "nowhere").read()
            assert "ALTER TABLE" in caught.value.hint
            site.plain.run("CREATE TABLE bare (id INTEGER PRIMARY KEY)")
            site.plain.run("INSERT INTO bare (id) VALUES (1)")
            for mode in MODES:
                with pytest.raises(Unsupported) as caught:
                    await ask(lock_of(1, "bare"), mode)()
            lower = caught.value.hint.lower()
            assert "bare" in lower
            assert "lock_mark" in lower
            with pytest.raises(ConfigurationError, match="no such row"):
                await lock_of(99).read()
            # It is enough to do as one was told.
            for statement in caught.value.hint.split("; "):
                site.plain.run(statement)
            async with lock_of(1, "bare").write():
                pass

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("mode", MODES)
    async def test_cancelled_anywhere(
        self, site: RowSite, mode: str, *, late: bool
    ) -> None:
        """At each suspension of acquire, hold and release no count is leaked."""
        async with opened(site) as lock_of:
            await lock_of(1).look()

            async def use() -> None:
                async with ask(lock_of(1), mode)():
                    await anyio.lowlevel.checkpoint()

            for k in range(1, 40):
                done = CancelAt(use(), k, lambda: scope.cancel(), late=late)  # noqa: PLW0108
                with anyio.CancelScope() as scope:
                    await done
                assert site.plain.state() == FREE, k
                if done.suspensions < k:
                    break
            else:
                pytest.fail("it never ends")
