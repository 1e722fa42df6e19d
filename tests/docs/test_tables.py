"""The tables of the documentation say what the code says."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest

import aiorwlock_remote
from aiorwlock_remote import Mutex, OptionArgs, connect, errors
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.ports import BEYOND_LOCKS, Capability
from aiorwlock_remote.registry import _BUILT_IN

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def cells(line: str) -> list[str]:
    return re.split(r"\s*\|\s*", line)[1:-1]


def table(page: str, head: str) -> list[list[str]]:
    """The rows of all tables of a page whose first column is called `head`."""
    rows: list[list[str]] = []
    inside = False
    for line in (DOCS / page).read_text("utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("| ---"):
            rows.append(cells(line))
        elif cells(line)[0] == head:
            inside = True
    assert rows, f"{page} has no table {head!r}"
    return rows


def code(cell: str) -> str:
    return cell.strip("`")


def defaults(function: Callable[..., object]) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.default is not inspect.Parameter.empty
    }


def test_options_and_their_defaults() -> None:
    options = Options()
    documented = {
        code(name): code(value)
        for name, value, *rest in table("reference/options.md", "option")
        if len(rest) == 1
    }
    real = {name: getattr(options, name) for name in OptionArgs.__annotations__}
    real |= defaults(connect) | defaults(Mutex.acquire)
    assert documented == {
        name: f'"{value}"' if isinstance(value, str) else repr(value)
        for name, value in real.items()
    }


GIVEN: dict[str, object] = {
    "lease": 10.0,
    "policy": "writer",
    "fair": False,
    "on_lost": "flag",
    "max_stall": 5.0,
    "max_hold": 50.0,
    "margin": 0.1,
    "slow_wait": 1.0,
    "max_waiters": 5,
    "lock_delay": 1.0,
}


@pytest.mark.asyncio
async def test_where_options_can_be_given() -> None:
    rows = table_of(DOCS / "reference/options.md", "| option | `mutex` ")
    documented = {
        code(option): [cell == "yes" for cell in taken] for option, *taken in rows
    }
    others = documented.pop("all others")
    assert set(GIVEN) == set(OptionArgs.__annotations__)
    async with connect("memory://") as locks:
        makers: tuple[Callable[..., object], ...] = (
            lambda **given: locks.mutex("order", 1, **given),
            lambda **given: locks.rwlock("order", 1, **given),
            lambda **given: locks.semaphore("order", 1, 2, **given),
            lambda **given: locks.leader("order", **given),
        )
        for option, value in GIVEN.items():
            taken = [is_taken(maker, option, value) for maker in makers]
            assert taken == documented.get(option, others), option


def is_taken(maker: Callable[..., object], option: str, value: object) -> bool:
    try:
        maker(**{option: value})
    except errors.ConfigurationError:
        return False
    return True


def table_of(path: Path, head: str) -> list[list[str]]:
    """The rows of the table whose first line begins with ``head``."""
    lines = iter(path.read_text("utf-8").splitlines())
    for line in lines:
        if line.startswith(head):
            break
    next(lines)
    return [cells(line) for line in takewhile(lambda line: line.startswith("|"), lines)]


def test_errors_and_their_hints() -> None:
    documented = {
        code(name): (code(base), int(hint))
        for name, base, hint, _ in table("reference/errors.md", "error")
    }
    real = {}
    for name in errors.__all__:
        cls = getattr(errors, name)
        if not isinstance(cls, type) or cls is errors.LockError:
            continue
        assert issubclass(cls, errors.LockError)
        other = [b.__name__ for b in cls.__bases__ if b.__module__ == "builtins"]
        real[name] = ("".join(other), cls.status_hint)
    assert documented == real


def test_reasons_of_a_loss() -> None:
    documented = [code(reason) for reason, _ in table("reference/errors.md", "reason")]
    assert documented == list(errors.LossReason.__args__)  # type: ignore[attr-defined]


COLUMNS = (
    Capability.MANY_PROCESSES,
    Capability.MANY_HOSTS,
    Capability.NOTIFIES,
    Capability.OFF_LOOP_RENEWAL,
    Capability.PUBLISHED_LAYOUT,
    Capability.PUSHES,
)
STORES = {
    "memory": "MemoryStore",
    "sqlite": "SqliteStore",
    "file": "FileStore",
    "redis": "RedisStore",
    "rediss": "RedisStore",
    "redis+cluster": "RedisStore",
    "rediss+cluster": "RedisStore",
    "rediss+sentinel": "RedisStore",
    "redis+sentinel": "RedisStore",
    "unix": "RedisStore",
    "valkey": "RedisStore",
    "valkeys": "RedisStore",
    "valkey+cluster": "RedisStore",
    "valkey+sentinel": "RedisStore",
    "valkeys+cluster": "RedisStore",
    "valkeys+sentinel": "RedisStore",
    "cassandra": "CassandraStore",
    "etcd": "EtcdStore",
    "etcds": "EtcdStore",
    "oracle": "OracleStore",
    "postgresql": "PostgresqlStore",
    "mariadb": "MariadbStore",
    "mysql": "MysqlStore",
}


def test_every_store_is_in_the_matrix() -> None:
    assert set(STORES) == set(_BUILT_IN)
    assert len(table("stores/index.md", "URL")) == len(set(_BUILT_IN.values()))
    assert set(COLUMNS) == {one for one in Capability if one not in BEYOND_LOCKS}


@pytest.mark.parametrize("scheme", STORES)
def test_capabilities(scheme: str) -> None:
    (row,) = (
        row for row in table("stores/index.md", "URL") if f"`{scheme}://" in row[0]
    )
    store = getattr(import_module(_BUILT_IN[scheme].partition(":")[0]), STORES[scheme])
    yes = [column in store.capabilities for column in COLUMNS]
    assert [cell == "yes" for cell in row[2:]] == yes


KINDS = {
    "mutex_set": Capability.MUTEX_SETS,
    "set_rwlock": Capability.KEY_PAIRS,
    "occupancy": Capability.OCCUPANCY,
    "row_lock": Capability.ROW_LOCKS,
    "in_transaction": Capability.TRANSACTIONS,
    "min_replicas": Capability.REPLICAS,
    "wake": Capability.HINTS,
}
"""What the locks of only some stores need. The others beyond plain locks change no
lock, but how soon a waiter is woken or a grant renewed."""


def test_locks_of_some_stores() -> None:
    said: dict[Capability, str] = {}
    for locks, stores in table("stores/index.md", "locks"):
        for name in re.findall(r"`(\w+)`", locks):
            if name in KINDS:
                said[KINDS[name]] = stores.lower()
    assert set(said) == set(KINDS.values())
    seldom = Capability.ROW_RELEASES, Capability.FAILS_OVER
    assert {one for one in BEYOND_LOCKS if one not in seldom} == set(said)
    for scheme in ("memory", "sqlite", "redis", "cassandra", "postgresql", "mariadb"):
        module = import_module(_BUILT_IN[scheme].partition(":")[0])
        store = getattr(module, STORES[scheme])
        able = {one for one in said if one in store.capabilities}
        assert able == {one for one, stores in said.items() if scheme in stores}


def test_everything_public_is_in_the_reference() -> None:
    pages = [
        page for page in (DOCS / "reference").glob("*.md") if "sync" not in page.stem
    ]
    words = set(re.findall(r"\w+", "".join(page.read_text("utf-8") for page in pages)))
    words |= {*errors.__all__, "__version__"}
    assert [name for name in aiorwlock_remote.__all__ if name not in words] == []


def test_extras_and_what_they_install() -> None:
    documented = {
        code(extra): re.findall(r"`([^`]+)`", installs)
        for extra, installs, _ in table("reference/extras.md", "extra")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    real = {
        extra: [re.split(r"[<>=]", wanted)[0] for wanted in installs]
        for extra, installs in project["optional-dependencies"].items()
    }
    (every,) = real.pop("all")
    assert documented.pop("all") == []
    assert documented == real
    assert set(every.partition("[")[2].rstrip("]").split(",")) == set(real)


INSTALL = re.compile(r"""pip install (['"]?)(aiorwlock-remote|\.)\[([\w,-]+)\]\1""")
"""A command that installs this library with extras."""
ADDS = {"README.md", "docs/reference/extras.md"}
"""The pages that say how an extra is added to what is installed."""


def test_pages_install_from_a_clone_and_errors_add_to_what_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    texts = sorted((ROOT / "aiorwlock_remote").rglob("*.py"))
    found: dict[str, set[str]] = {".": set(), "aiorwlock-remote": set()}
    for path in (*pages, *texts):
        name = path.relative_to(ROOT).as_posix()
        for _, what, wanted in INSTALL.findall(path.read_text("utf-8")):
            assert set(wanted.split(",")) <= extras, name
            found[what].add(name)
    added = {name for name in found["aiorwlock-remote"] if name.endswith(".md")}
    assert added == ADDS
    assert found["."] <= {path.relative_to(ROOT).as_posix() for path in pages}
    assert len(found["aiorwlock-remote"] - added) >= 4


def test_files_that_the_readme_links_to_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_tables_of_sqlite_are_those_of_its_schema() -> None:
    page = (DOCS / "stores/sqlite.md").read_text("utf-8")
    schema = (ROOT / "aiorwlock_remote/backends/sqlite/sqlite.sql").read_text("utf-8")

    def columns(text: str) -> list[tuple[str, ...]]:
        bare = re.sub(r"--[^\n]*", "", text)
        made = re.findall(
            r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\) WITHOUT", bare, re.DOTALL
        )
        return [(name, *body.split()) for name, body in made]

    assert columns(page) == columns(schema)
