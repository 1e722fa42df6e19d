"""What a row lock does, whatever the database and the way in."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from aiorwlock_remote import LockLost, LockTimeout, NotOwner, WouldDeadlock
from aiorwlock_remote.errors import BadRecord, ConfigurationError, Unsupported
from tests.recipes.row_sites import (
    FREE,
    LOCKED,
    MODES,
    PATIENCE,
    THEIRS,
    RowSite,
    ask,
    held_elsewhere,
    opened,
    try_elsewhere,
)
from tests.runtime.cancel_at import CancelAt

# --------- The least that a row lock does, whatever the database and the way in


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
        """Nobody knows whose lock it was; but that it is gone is known."""
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
            # To follow the hint is enough.
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


# --------------- All that a row lock does, whatever the database and the way in


ODD = (
    *(("NULL", "0"), ("'Unlock'", "NULL"), ("NULL", "NULL"), ("'ReadLock'", "0")),
    *(("'ReadLock'", "-1"), ("'Unlock'", "1"), ("'WriteLock'", "2"), ("'locked'", "0")),
    ("''", "0"),
)
"""Marks and counts."""


class RowLockSuite(RowLockBasics):
    """Beside the least of it. Subclasses give ``site``."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("timeout", [0, 0.05])
    async def test_a_refused_task_gets_the_reason(
        self, site: RowSite, mode: str, timeout: float
    ) -> None:
        """By which mark and which reason."""
        async with opened(site) as lock_of:
            site.plain.step("WLock", reason="month's end; 100%")
            with pytest.raises(LockTimeout) as caught:
                async with ask(lock_of(1), mode)(timeout=timeout):
                    pytest.fail("granted")
            error = caught.value
            assert error.holders == ("WriteLock: month's end; 100%",)
            assert (error.mode, error.timeout) == (mode, timeout)
            assert "invoices/1" in str(error)
            site.plain.step("WUnlock")
            site.plain.step("RLock", reason="a report")
            with pytest.raises(LockTimeout) as caught:
                await lock_of(1).write("mine", timeout=timeout)
            assert caught.value.holders == ("ReadLock by 1: a report",)
            assert site.plain.state() == ("ReadLock", 1)

    @pytest.mark.parametrize("mode", MODES)
    async def test_waits_for_another_program(self, site: RowSite, mode: str) -> None:
        async with opened(site) as lock_of, anyio.create_task_group() as group:
            site.plain.step("WLock")
            entered = anyio.Event()

            async def wait() -> None:
                async with ask(lock_of(1), mode)(timeout=PATIENCE):
                    assert site.plain.state() == LOCKED[mode]
                    entered.set()

            group.start_soon(wait)
            await anyio.sleep(0.1)
            assert not entered.is_set()
            # In a thread: a look of ours may lock the row, and ends only when this loop
            # goes on.
            await anyio.to_thread.run_sync(site.plain.step, "WUnlock")
            await entered.wait()
        assert site.plain.state() == FREE

    async def test_many_tasks_of_a_process(self, site: RowSite) -> None:
        """Writers are alone, readers see nobody write; all get their turn."""
        async with opened(site) as lock_of:
            lock, inside, seen = lock_of(1), 0, 0

            async def write() -> None:
                nonlocal inside
                async with lock.write(timeout=PATIENCE):
                    assert inside == 0
                    inside += 1
                    await anyio.lowlevel.checkpoint()
                    inside -= 1

            async def read() -> None:
                nonlocal seen
                async with lock.read(timeout=PATIENCE):
                    assert inside == 0
                    seen += 1

            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(write)
                    group.start_soon(read)
            assert seen == 6
        assert site.plain.state() == FREE

    async def test_not_reentrant(self, site: RowSite) -> None:
        async with opened(site) as lock_of:
            async with lock_of(1).read():
                for mode in MODES:
                    with pytest.raises(WouldDeadlock) as caught:
                        await ask(lock_of(1), mode)()
                    assert caught.value.held_mode == "read"
            async with lock_of(1).write():
                pass

    @pytest.mark.parametrize("mode", MODES)
    async def test_released_once(self, site: RowSite, mode: str) -> None:
        async with opened(site) as lock_of:
            async with ask(lock_of(1), mode)() as held:
                await held.release()
                assert site.plain.state() == FREE
            with pytest.raises(NotOwner):
                await held.release()
            assert held.expires_in == 0.0

    async def test_a_writer_may_delete_the_row(self, site: RowSite) -> None:
        async with opened(site) as lock_of:
            async with lock_of(1).write():
                site.plain.run("DELETE FROM invoices WHERE id = {}", 1)
            with pytest.raises(LockLost):
                async with lock_of(2).read():
                    site.plain.run("DELETE FROM invoices WHERE id = {}", 2)
            with pytest.raises(ConfigurationError, match="no such row") as caught:
                await lock_of(1).write()
            assert "INSERT INTO" in caught.value.hint

    async def test_what_no_lock_leaves_behind(self, site: RowSite) -> None:
        """It is refused as it is, and the error says how to repair it."""
        site.plain.run(
            "CREATE TABLE odd (id INTEGER PRIMARY KEY, lock_mark VARCHAR(9),"
            " read_lock_count INTEGER, lock_reason VARCHAR(200),"
            " lock_grants VARCHAR(4000))"
        )
        for number, (mark, count) in enumerate(ODD):
            values = f"{number}, {mark}, {count}, NULL, NULL"
            site.plain.run(f"INSERT INTO odd VALUES ({values})")  # noqa: S608
        before = site.plain.rows("SELECT * FROM odd ORDER BY id")
        hints: list[str] = []
        async with opened(site) as lock_of:
            for number in range(len(ODD)):
                for mode in MODES:
                    with pytest.raises(BadRecord) as caught:
                        await ask(lock_of(number, "odd"), mode)(timeout=5)
                    hints.append(caught.value.hint)
            assert site.plain.rows("SELECT * FROM odd ORDER BY id") == before
            for hint in hints:
                site.plain.run(hint)
            for number in range(len(ODD)):
                async with lock_of(number, "odd").read():
                    pass

    async def test_marks_of_another_type(self, site: RowSite) -> None:
        site.plain.run(
            "CREATE TABLE odd (id INTEGER PRIMARY KEY, lock_mark INTEGER DEFAULT 0,"
            " read_lock_count INTEGER DEFAULT 0, lock_reason VARCHAR(200),"
            " lock_grants VARCHAR(4000))"
        )
        site.plain.run("INSERT INTO odd (id) VALUES (1)")
        async with opened(site) as lock_of:
            for mode in MODES:
                with pytest.raises((Unsupported, BadRecord)) as caught:
                    await ask(lock_of(1, "odd"), mode)(timeout=5)
                assert caught.value.hint

    async def test_a_key_of_several_rows(self, site: RowSite) -> None:
        """What was locked by it is unlocked."""
        site.plain.run(
            "CREATE TABLE odd (id INTEGER, lock_mark VARCHAR(9) DEFAULT 'Unlock',"
            " read_lock_count INTEGER DEFAULT 0, lock_reason VARCHAR(200),"
            " lock_grants VARCHAR(4000))"
        )
        for _ in range(2):
            site.plain.run("INSERT INTO odd (id) VALUES (1)")
        async with opened(site) as lock_of:
            for mode in MODES:
                with pytest.raises(ConfigurationError, match="2 rows"):
                    await ask(lock_of(1, "odd"), mode)()
                found = site.plain.rows("SELECT lock_mark, read_lock_count FROM odd")
                assert found == [FREE, FREE]

    async def test_a_key_of_several_rows_some_of_which_are_locked(
        self, site: RowSite
    ) -> None:
        """By another program, and by a key that is one: nothing of that is changed."""
        site.plain.run(
            "CREATE TABLE odd (id INTEGER, lock_mark VARCHAR(9) DEFAULT 'Unlock',"
            " read_lock_count INTEGER DEFAULT 0, lock_reason VARCHAR(200),"
            " lock_grants VARCHAR(4000))"
        )
        site.plain.run("INSERT INTO odd (id) VALUES (1)")
        site.plain.run("INSERT INTO odd (id, lock_mark) VALUES (1, 'WriteLock')")
        query = "SELECT lock_mark, read_lock_count, lock_reason FROM odd ORDER BY 1"
        before = site.plain.rows(query)
        async with opened(site) as lock_of:
            for mode in MODES:
                with pytest.raises(ConfigurationError, match=r"2 rows.*id.* unique"):
                    await ask(lock_of(1, "odd"), mode)(timeout=5)
                assert site.plain.rows(query) == before

    async def test_cancelled_while_it_waits(self, site: RowSite) -> None:
        async with opened(site) as lock_of:
            site.plain.step("WLock")
            for mode in MODES:
                with anyio.move_on_after(0.15):
                    await ask(lock_of(1), mode)()
            assert site.plain.state() == ("WriteLock", 0)
            site.plain.step("WUnlock")
            async with lock_of(1).write(timeout=PATIENCE):
                pass
