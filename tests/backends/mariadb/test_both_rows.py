"""A step changes both rows of a resource, or neither, if one is not as expected."""

from __future__ import annotations

import pytest

from aiorwlock_remote import Unsupported, connect
from aiorwlock_remote.backends.mariadb import AsyncmyBackend
from aiorwlock_remote.cas.driver.store import TableStore
from aiorwlock_remote.core.commands import Claim, Command, Downgrade, Release, Released
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.transition import transition
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.mariadb.pools import STRICT, pool_of
from tests.backends.mariadb.products import MARIADB_PRODUCT, Product
from tests.cas.tables import LEASE, ORDER, acquire, opened
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "the statements are the same on both"),
]
ROWS = (
    "SELECT * FROM mutex_locks FOR UPDATE NOWAIT",
    "SELECT * FROM doormans FOR UPDATE NOWAIT",
)
STEPS: dict[str, tuple[list[Command], Command]] = {
    "insert": ([acquire("t1"), Release("t1")], acquire("t2")),
    "update": ([acquire("t1")], Downgrade("t1", Claim("t2", LEASE))),
    "delete": ([acquire("t1")], Release("t1")),
}
"""By what it does with the mutex row: the steps before, and the step."""
OTHERS = {
    "doorman": "UPDATE doormans SET version = 'theirs'",
    "mutex": "UPDATE mutex_locks SET ticket = 'theirs'",
    "time": "UPDATE mutex_locks SET acquired_at = '2001-01-01'",
    "no mutex": "DELETE FROM mutex_locks",
    "no doorman": "DELETE FROM doormans",
    "a mutex": "INSERT INTO mutex_locks VALUES ('order', 42, 'theirs', NOW(6))",
}
"""What another program has done meanwhile."""
CASES = [
    *(("insert", others) for others in ("doorman", "no doorman", "a mutex")),
    *(
        (changes, others)
        for changes in ("update", "delete")
        for others in ("doorman", "no doorman", "mutex", "time", "no mutex")
    ),
]
PATIENCE = pytest.mark.parametrize("patience", [None, 0.0, 0.3])
SLACK = 5.0


async def swap(store: TableStore, command: Command, late: float = 0.0) -> bool:
    """Send one swap from the state that the store remembers, so many seconds late.

    A machine that stands still for a moment does not make it late.
    """
    state = store.steps.known(ORDER)
    assert state is not None
    at = store.cas.times(state)
    at = replace(at, now=at.now - micros(late), slack=micros(SLACK))
    step = transition(state.record, state.seat, command, at.now, at.floor, at.wall)
    done, _ = await store.cas.swap(ORDER, state, step.record, step.seat, at)
    return done


def rows(url: str) -> list[object]:
    """Both tables' rows; fails if one is still locked."""
    return [run(url, statement) for statement in ROWS]


@pytest.mark.parametrize(("changes", "others"), CASES)
@PATIENCE
async def test_a_row_that_is_not_as_expected(
    db_tables: str, changes: str, others: str, patience: float | None
) -> None:
    before, last = STEPS[changes]
    async with opened(db_tables) as store:
        for command in before:
            await store.step(ORDER, command)
        run(db_tables, OTHERS[others])
        found = rows(db_tables)
        store.cas.patience = patience  # type: ignore[attr-defined]
        assert not await swap(store, last)
        assert rows(db_tables) == found


@pytest.mark.parametrize("changes", STEPS)
async def test_a_step_that_comes_too_late(db_tables: str, changes: str) -> None:
    before, last = STEPS[changes]
    async with opened(db_tables) as store:
        for command in before:
            await store.step(ORDER, command)
        found = rows(db_tables)
        assert not await swap(store, last, late=10)
        assert rows(db_tables) == found


@pytest.mark.parametrize("changes", STEPS)
@PATIENCE
async def test_both_rows_are_committed(
    db_tables: str, changes: str, patience: float | None
) -> None:
    before, last = STEPS[changes]
    async with opened(db_tables) as store:
        for command in before:
            await store.step(ORDER, command)
        store.cas.patience = patience  # type: ignore[attr-defined]
        mutexes, doormans = rows(db_tables)
        assert await swap(store, last)
        after = rows(db_tables)
        assert after[0] != mutexes
        assert after[1] != doormans


@pytest.mark.parametrize(
    ("others", "reason"), [("mutex", "stolen"), ("no mutex", "forced")]
)
async def test_a_release_says_why_the_grant_had_ended(
    db_tables: str, others: str, reason: str
) -> None:
    async with opened(db_tables) as store:
        await store.step(ORDER, acquire("t1"))
        run(db_tables, OTHERS[others])
        mutexes = run(db_tables, ROWS[0])
        reply = await store.step(ORDER, Release("t1"))
        assert reply == Released(held=False, reason=reason)  # type: ignore[arg-type]
        assert run(db_tables, ROWS[0]) == mutexes


MODES = (
    "STRICT_ALL_TABLES",
    "STRICT_TRANS_TABLES,ANSI,NO_BACKSLASH_ESCAPES",
    "STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE",
    "TRADITIONAL,PIPES_AS_CONCAT,IGNORE_SPACE",
)
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("autocommit", [True, False])
async def test_sessions_of_a_pool(
    db_tables: str, product: Product, autocommit: bool
) -> None:
    """Both rows or neither, whatever SQL mode and isolation they have."""
    modes = (*MODES, "ORACLE,STRICT_ALL_TABLES")
    for mode in modes if product is MARIADB_PRODUCT else MODES:
        for level in LEVELS:
            run(db_tables, "DELETE FROM doormans", "DELETE FROM mutex_locks")
            begin = (
                f"SET SESSION sql_mode = '{mode}';"
                f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"
            )
            async with pool_of(
                db_tables, init_command=begin, autocommit=autocommit
            ) as backend:
                store = await opened_over(backend)
                for steals in (False, True):
                    await store.step(ORDER, acquire("t1"))
                    assert len(run(db_tables, ROWS[0])) == 1
                    if steals:
                        run(db_tables, OTHERS["mutex"])
                    found = rows(db_tables)
                    assert await swap(store, Release("t1")) != steals
                    assert (rows(db_tables) == found) == steals
                await store.aclose()


async def opened_over(backend: AsyncmyBackend) -> TableStore:
    settings = StoreSettings(client_id="c" * 16)
    return await backend.open(current_event_loop(), lambda *_: None, settings)


async def test_a_binary_log_of_statements(start_db: StartMariadb) -> None:
    """A replica would carry out the statements with other row counts."""
    log = {"log-bin": "bin", "binlog-format": "STATEMENT", "server-id": "1"}
    url = start_db(config=log).url
    with pytest.raises(Unsupported, match="binlog_format = 'MIXED'"):
        async with connect(url):
            pass
    level = f"{STRICT}; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    async with pool_of(url, init_command=level) as backend:
        with pytest.raises(Unsupported, match="binlog_format = 'MIXED'"):
            await connect(backend)
    run(url.replace("/app", "/"), "SET GLOBAL binlog_format = 'MIXED'")
    async with (
        pool_of(url, init_command=level) as backend,
        connect(url) as own,
        connect(backend) as lent,
    ):
        for locks in (own, lent):
            async with locks.mutex("order", 1) as held:
                assert held.fence > 0
