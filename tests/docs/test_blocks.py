"""Every block of code in README and docs runs, in order, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.fix_blocks import NO_RUN, SET_UP, Page, blocks, run
from tests.servers.cluster import Cluster
from tests.servers.etcd import etcdctl_program
from tests.servers.fix_cassandra import Keyspace
from tests.servers.fix_etcd import SharedEtcd
from tests.servers.oracle.client import OracleUser
from tests.servers.process import IP
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [path for path in PAGES if "_build" not in path.parts]
RUN = {"python", "sh", "sql"}
REDIS = "redis://localhost/0"
SENTINELS = "redis+sentinel://sentinel1,sentinel2,sentinel3/mymaster/0"
NODES = "redis+cluster://node1,node2,node3"
CASSANDRA = "cassandra://localhost/locks"
ETCD = "etcd://localhost/app"
ETCDCTL = "etcdctl "
SESSION = 'Cluster(["localhost"]).connect("locks")'
POSTGRESQL = "postgresql://postgres@localhost/postgres"
MARIADB = "mariadb://app@localhost/app"
MYSQL = "mysql://app@localhost/app"
LOGIN = 'host="localhost", port=3306, user="app", db="app"'
ORACLE = "oracle://locks:secret@localhost:1521/FREEPDB1"
POOL = 'user="locks", password="secret", dsn="localhost:1521/FREEPDB1"'
ENGINE = "locks:secret@localhost:1521/?service_name=FREEPDB1"
DIRECTORY = "/var/lib/locks"
SHOWN = {"text", "toml", "yaml"}
DIRECTIVE = re.compile(r"\{[\w-]+\}")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_blocks_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    servers: dict[str, str] = {}
    if REDIS in path.read_text("utf-8"):
        server: RedisServer = request.getfixturevalue("fresh_redis")
        servers[REDIS] = server.url
    if SENTINELS in path.read_text("utf-8"):
        group: SentinelGroup = request.getfixturevalue("sentinel_group")
        servers[SENTINELS] = group.url
    if NODES in path.read_text("utf-8"):
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        servers[NODES] = cluster.url
    if DIRECTORY in path.read_text("utf-8"):
        servers[DIRECTORY] = f"{tmp_path}/locks"
    if CASSANDRA in path.read_text("utf-8"):
        keyspace: Keyspace = request.getfixturevalue("keyspace")
        servers[CASSANDRA] = keyspace.url
        contact = f'["127.0.0.1"], port={keyspace.node.port}'
        servers[SESSION] = f'Cluster({contact}).connect("{keyspace.name}")'
    if ETCD in path.read_text("utf-8"):
        etcd: SharedEtcd = request.getfixturevalue("etcd_server")
        servers[ETCD] = f"{etcd.url}/app"
        servers[ETCDCTL] = f"{etcdctl_program()} --endpoints={etcd.address} "
    if POSTGRESQL in path.read_text("utf-8"):
        servers[POSTGRESQL] = url = request.getfixturevalue("tables")
        for_engines = ("postgresql:", "postgresql+asyncpg:")
        servers[POSTGRESQL.replace(*for_engines)] = url.replace(*for_engines)
    for url, tables in ((MARIADB, "mariadb_tables"), (MYSQL, "mysql_tables")):
        if url in path.read_text("utf-8"):
            servers[url] = there = request.getfixturevalue(tables)
            port, _, database = there.rpartition(":")[2].partition("/")
            servers[LOGIN] = f'host="{IP}", port={port}, user="root", db="{database}"'
    if ORACLE in path.read_text("utf-8"):
        user: OracleUser = request.getfixturevalue("oracle_user")
        servers[ORACLE] = user.url
        login = [f'{name}="{value}"' for name, value in user.login.items()]
        servers[POOL] = ", ".join(login)
        place, service = user.dsn.split("/")
        at = f"{user.name}:{user.password}@{place}"
        servers[ENGINE] = f"{at}/?service_name={service}"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with Page(tmp_path, servers) as page:
        run(path, page)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_blocks_have_a_language_that_we_know(path: Path) -> None:
    found = blocks(path.read_text("utf-8"))
    strange = [
        f"{name(path)}:{block.line}: {block.language or 'no language'}"
        for block in found
        if block.language.partition(" ")[0] not in RUN | SHOWN
        and not DIRECTIVE.match(block.language)
    ]
    assert strange == []


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    marks = [mark for path in PAGES for mark in unrun(path.read_text("utf-8"))]
    assert len(marks) <= 5, marks


def test_set_up_commands_are_not_run_here() -> None:
    commands = [
        block.text
        for block in blocks((ROOT / "README.md").read_text("utf-8"))
        if SET_UP in block.text
    ]
    assert len(commands) == 2


def unrun(text: str) -> list[str]:
    return [
        found["reason"]
        for block in blocks(text)
        if (found := NO_RUN.search(text[: block.start])) is not None
    ]


# ----------------------------------------------------- what runs the blocks


def page_of(text: str, folder: Path) -> list[str]:
    """Run a page; the languages of the blocks that ran."""
    path = folder / "page.md"
    path.write_text(text, "utf-8")
    with Page(folder) as page:
        run(path, page)
    return page.ran


def test_blocks_continue_each_other(tmp_path: Path) -> None:
    text = """
```python
import asyncio
x = await asyncio.sleep(0, 1)
```
1. In a list:
   ```python
   if True:
       x += 1
   ```
```sh
export NAME=here
```
```sh
touch "$PWD/$NAME"
```
```python
assert x == 2
```
"""
    assert page_of(text, tmp_path) == ["python", "python", "sh", "sh", "python"]
    assert (tmp_path / "here").exists()


@pytest.mark.parametrize(
    "block",
    [
        "```python\nassert False\n```",
        "```python\nimport asyncio\nawait asyncio.sleep(0)\nraise ValueError\n```",
        "```python\n1 +\n```",
        "```sh\nfalse\ntrue\n```",
        "```sh\nfalse | true\n```",
        "```sql\nSOME 1;\n```",
    ],
)
def test_a_block_that_fails_fails_the_page(block: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"page\.md|False|ValueError|SOME|^$"):
        page_of(block, tmp_path)


def test_blocks_that_are_not_run(tmp_path: Path) -> None:
    text = """
<!-- no-run: a server, see tests/examples -->
```python
raise ValueError
```
```sh
python3 -m venv .venv && .venv/bin/false
```
```text
shown only
```
"""
    assert page_of(text, tmp_path) == []
    assert unrun(text) == ["a server, see tests/examples"]


def test_a_block_that_is_not_closed_is_an_error() -> None:
    with pytest.raises(AssertionError, match="line 2"):
        list(blocks("text\n```python\n1\n"))
