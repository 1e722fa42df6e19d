"""What several tests of the Cassandra store need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest

from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options, options_of
from aiorwlock_remote.backends.cassandra.statements import statement
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.runtime.loops import current_host
from tests.backends.cassandra.counted import Counted
from tests.servers.fix_cassandra import Keyspace
from tests.servers.plain_cassandra import PUBLISHED

LAYOUTS = ("pair", "type")

both_layouts = pytest.mark.parametrize("layout", LAYOUTS, indirect=True)


@pytest.fixture
def options(keyspace: Keyspace) -> Options:
    """Of the table in a keyspace of the test's own, which is not there yet."""
    return replace(options_of(parse(keyspace.url)), connect_timeout=20.0)


@pytest.fixture
def create(keyspace: Keyspace, options: Options) -> Callable[[str], None]:
    """Makes the table, in one of the two layouts."""

    def make(layout: str) -> None:
        if layout == "type":
            keyspace.visit.rows(PUBLISHED.format(table=options.quoted))
            keyspace.visit.rows(statement("widen", options))
        else:
            keyspace.visit.rows(statement("schema_pair", options))

    return make


@pytest.fixture
def layout(request: pytest.FixtureRequest, create: Callable[[str], None]) -> str:
    """The table is there, as our schema has it or as ``both_layouts`` say."""
    name: str = getattr(request, "param", LAYOUTS[0])
    create(name)
    return name


@pytest.fixture
async def table(layout: str, options: Options) -> AsyncIterator[Table]:
    """Open, over a session of its own."""
    found = await opening.connect(options, current_host())
    assert found.layout == layout
    yield found
    found.close()


@pytest.fixture
def counted(keyspace: Keyspace, layout: str) -> Counted:
    assert layout
    return Counted(keyspace)


@pytest.fixture
def left_open(keyspace: Keyspace) -> Iterator[None]:
    """The session that we were lent is not ours to close."""
    yield
    assert not keyspace.visit.session.is_shutdown
