"""What several tests of the Cassandra store need."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options, options_of, statement
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.counting_store import CountingBackend
from tests.backends.cassandra.fake_loop import FakeLoop
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import Keyspace, SharedNode, fresh_keyspace
from tests.servers.plain_cassandra import PUBLISHED, warm_up

LAYOUTS = ("pair", "type")

both_layouts = pytest.mark.parametrize("layout", LAYOUTS, indirect=True)

IN_TURN = 3
"""Furnished keyspaces of a layout. Requests that come late, come where nobody is."""

Furnished = Callable[[str], Keyspace]


@pytest.fixture(scope="session")
def furnished(
    cassandra_node: SharedNode, cassandra_visit: Visit
) -> Iterator[Furnished]:
    """Keyspaces with the empty table of a layout: half a second each, so made once.

    The node is warm: in a cold one a transaction takes ten times as long.
    """
    resting: dict[str, deque[Keyspace]] = defaultdict(deque)
    with ExitStack() as stack:

        def use(layout: str) -> Keyspace:
            keyspaces = resting[layout]
            if len(keyspaces) < IN_TURN:
                fresh = fresh_keyspace(cassandra_node, cassandra_visit)
                cold = not any(resting.values())
                keyspaces.append(furnish(stack.enter_context(fresh), layout))
                if cold:
                    warm_up(keyspaces[-1])
            else:
                keyspaces.rotate(-1)
            keyspace = keyspaces[-1]
            keyspace.visit.rows(f"TRUNCATE {options_at(keyspace).quoted}")
            return keyspace

        yield use


def options_at(keyspace: Keyspace) -> Options:
    """Of the table there, which need not be there yet."""
    usual = options_of(parse(keyspace.url))
    return replace(usual, connect_timeout=20.0, request_timeout=20.0)


def furnish(keyspace: Keyspace, layout: str) -> Keyspace:
    """With the table, in one of the two layouts."""
    options = options_at(keyspace)
    if layout == "type":
        keyspace.visit.rows(PUBLISHED.format(table=options.quoted))
        keyspace.visit.rows(statement("widen", options))
    else:
        keyspace.visit.rows(statement("schema_pair", options))
    return keyspace


@pytest.fixture
def keyspace(
    request: pytest.FixtureRequest, cassandra_node: SharedNode, cassandra_visit: Visit
) -> Iterator[Keyspace]:
    """Who asks for a layout changes nothing but rows. Others have an empty one."""
    if "layout" in request.fixturenames:
        furnished: Furnished = request.getfixturevalue("furnished")
        yield furnished(request.getfixturevalue("layout"))
        return
    with fresh_keyspace(cassandra_node, cassandra_visit) as fresh:
        yield fresh


@pytest.fixture
def options(keyspace: Keyspace) -> Options:
    """Of the table in the test's keyspace."""
    return options_at(keyspace)


@pytest.fixture
def create(keyspace: Keyspace) -> Callable[[str], None]:
    """Makes the table, in one of the two layouts."""

    def make(layout: str) -> None:
        furnish(keyspace, layout)

    return make


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> str:
    """The table is there, as our schema has it or as ``both_layouts`` say."""
    name: str = getattr(request, "param", LAYOUTS[0])
    return name


@pytest.fixture
async def table(layout: str, options: Options) -> AsyncIterator[Table]:
    """Open, over a session of its own."""
    found = await opening.connect(options, current_event_loop())
    assert found.layout == layout
    yield found
    found.close()


@pytest.fixture
def loop() -> FakeLoop:
    """Runs when the test says so."""
    return FakeLoop()


@pytest.fixture
def counted(keyspace: Keyspace, layout: str) -> CountingBackend:
    """A store over the session of the test, in a node that is warm."""
    assert layout
    return CountingBackend(keyspace)


@pytest.fixture
def left_open(keyspace: Keyspace) -> Iterator[None]:
    """The session that we were lent is not ours to close."""
    yield
    assert not keyspace.visit.session.is_shutdown
