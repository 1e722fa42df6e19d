"""A cluster of two data centres with a node each."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError, connect
from aiorwlock_remote.backends.cassandra.options import options_of, statement
from aiorwlock_remote.core.url import parse
from tests.servers.cassandra_ring import IPS, CassandraRing, Visit

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

LOCAL = "consistency=LOCAL_QUORUM&serial_consistency=LOCAL_SERIAL"


async def locked(url: str) -> int:
    """The fence of a lock, held and released."""
    opening = connect(url, connect_timeout=20)
    async with opening as locks, locks.mutex("order", 1).acquire(timeout=20) as held:
        return held.fence


async def refused(url: str, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        await locked(url)
    return str(caught.value)


async def test_the_nearer_one_is_named(tmp_path: Path) -> None:
    ring = CassandraRing(tmp_path, centres=("south", "north"))
    try:
        url = f"{ring.url}/locks"
        with Visit(IPS[0], ring.port) as visit:
            visit.rows(
                "CREATE KEYSPACE locks WITH replication = "
                "{'class': 'NetworkTopologyStrategy', 'north': 1, 'south': 1}"
            )
            visit.rows(statement("schema_pair", options_of(parse(url))))
        ring.settle()

        said = await refused(url, ConfigurationError)
        assert "several data centres; it has north, south; ?local_dc=north" in said
        said = await refused(f"{url}?local_dc=mars", ConfigurationError)
        assert "no data centre 'mars'; it has north, south" in said

        fences = [await locked(f"{url}?local_dc={dc}") for dc in ("north", "south")]
        fences += [await locked(f"{url}?local_dc=north&{LOCAL}") for _ in range(2)]
        assert fences == sorted(set(fences))

        ring.nodes[0].kill()  # the south, where nobody has to be asked
        assert await locked(f"{url}?local_dc=north&{LOCAL}") > fences[-1]
        await refused(f"{url}?local_dc=north", BackendUnavailable)
    finally:
        ring.close()
