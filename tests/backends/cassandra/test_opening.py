"""Connecting, and everything that can be wrong with a cluster and its table."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError, Unsupported
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.options import Options, statement
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.servers.fix_cassandra import Keyspace, SharedNode
from tests.servers.process import free_port, until
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.anyio]

RIGHT = """
    resource_id int, ticket text, acquired_at timestamp, version uuid,
    record text, frame bigint
"""
Create = Callable[[str], None]


async def refused(options: Options, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        (await opening.connect(options, current_event_loop())).close()
    return str(caught.value)


async def test_no_keyspace(options: Options) -> None:
    said = await refused(replace(options, keyspace="nowhere"), Unsupported)
    assert "keyspace 'nowhere' does not exist; CREATE KEYSPACE" in said


async def test_no_table(options: Options) -> None:
    assert "rwlock schema cassandra" in await refused(options, Unsupported)


async def test_the_published_table_lacks_our_columns(
    options: Options, create: Create, keyspace: Keyspace
) -> None:
    create("type")
    keyspace.visit.rows(f"ALTER TABLE {options.quoted} DROP record")
    said = await refused(options, Unsupported)
    alter = statement("widen", options)
    assert said.endswith(alter)
    keyspace.visit.rows(f"ALTER TABLE {options.quoted} DROP (version, frame)")
    keyspace.visit.rows(alter)
    (await opening.connect(options, current_event_loop())).close()


@pytest.mark.parametrize(
    ("columns", "key", "says"),
    [
        ("resource_id int, ticket text", "resource_type", "no column 'acquired_at'"),
        (
            "resource_id bigint, ticket text, acquired_at timestamp",
            "(resource_type, resource_id)",
            "column 'resource_id' is bigint, not int",
        ),
        (RIGHT, "resource_type", "its primary key is neither"),
        (
            f"{RIGHT}, x int",
            "(resource_type, resource_id), x",
            "its primary key is neither",
        ),
    ],
)
async def test_another_table_of_that_name(
    options: Options, keyspace: Keyspace, columns: str, key: str, says: str
) -> None:
    keyspace.visit.rows(
        f"CREATE TABLE {options.quoted} "
        f"(resource_type text, {columns}, PRIMARY KEY ({key}))"
    )
    assert says in await refused(options, Unsupported)


async def test_a_table_that_forgets(
    options: Options, create: Create, keyspace: Keyspace
) -> None:
    create("pair")
    alter = f"ALTER TABLE {options.quoted} WITH default_time_to_live = "
    keyspace.visit.rows(f"{alter} 60")
    assert (await refused(options, Unsupported)).endswith(f"; {alter}0")
    keyspace.visit.rows(f"{alter} 0")
    (await opening.connect(options, current_event_loop())).close()


async def test_another_data_centre(options: Options, create: Create) -> None:
    create("pair")
    said = await refused(replace(options, local_dc="mars"), ConfigurationError)
    assert "no data centre 'mars'; it has datacenter1; ?local_dc=datacenter1" in said
    named = replace(options, local_dc="datacenter1")
    (await opening.connect(named, current_event_loop())).close()


async def test_a_cluster_that_cannot_be_reached(options: Options) -> None:
    nobody = replace(options, port=free_port())
    assert "no node can be reached" in await refused(nobody, BackendUnavailable)


async def test_a_node_that_was_away_for_long_is_soon_found_again(
    table: Table,
) -> None:
    policy = table.client._session.cluster.reconnection_policy
    pauses = policy.new_schedule()
    assert max(islice(pauses, 1000)) < 3.0


async def test_a_name_nobody_knows(options: Options) -> None:
    lost = replace(options, hosts=("no-such-host.invalid",))
    await refused(lost, BackendUnavailable)


async def test_silence_ends_in_time(options: Options) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = replace(options, port=silent.getsockname()[1], connect_timeout=0.3)
        with anyio.fail_after(5):
            await refused(mute, BackendUnavailable)


async def test_a_node_that_says_nothing_at_first_is_tried_again(
    options: Options,
    create: Create,
    cassandra_node: SharedNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create("pair")
    monkeypatch.setattr(opening, "NODE_TIMEOUT", 0.5)
    with Proxy(cassandra_node.port) as proxy:
        proxy.black_hole(on=True)
        opened: list[Table] = []

        async def connect() -> None:
            slow = replace(options, port=proxy.port)
            opened.append(await opening.connect(slow, current_event_loop()))

        async with anyio.create_task_group() as group:
            group.start_soon(connect)
            twice = partial(until, lambda: proxy.connections > 1, "it has tried again")
            await anyio.to_thread.run_sync(twice)
            proxy.black_hole(on=False)
        opened[0].close()


async def test_cancelled_it_leaves_no_session(options: Options, create: Create) -> None:
    create("pair")
    before = drivers_threads()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await opening.connect(options, current_event_loop())
    with anyio.fail_after(30):
        while drivers_threads() > before:  # noqa: ASYNC110 - a thread's end is no event
            await anyio.sleep(0.02)


def drivers_threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(
        "heartbeat" in name.lower() or name.startswith(("Connection", "aiorwlock"))
        for name in names
    )
