"""The harnesses of Redis, in all the ways it is reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import redis
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import Harness, StoreLocation
from tests.backends.redis.rights import rules, under, url_of
from tests.servers.cluster import Cluster
from tests.servers.plain import PlainCluster, PlainRedis
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup


class RedisHarness(Harness):
    """``redis://``: one server, a prefix for each test. ``server`` is set before."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.PUSHES
        | Capability.REPLICAS
        | Capability.MUTEX_SETS
        | Capability.KEY_PAIRS
        | Capability.OCCUPANCY
    )
    has_foreigner = True
    server: ClassVar[RedisServer]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return keys of its own."""
        prefix = f"{uuid4().hex}:"
        url = self.server.url
        return StoreLocation(url, prefix, foreigner=PlainRedis(url, prefix))


class ClientHarness(RedisHarness):
    """``RedisBackend`` with a client of redis-py; other processes use the URL."""

    def fresh(self, folder: Path) -> StoreLocation:
        """Return keys and a client of its own, which opens no connection itself."""
        client = Redis.from_url(self.server.url, **self.settings())
        return replace(super().fresh(folder), backend=RedisBackend(client))

    def settings(self) -> dict[str, Any]:
        """Return options that users set, and that must not matter."""
        return {"protocol": 2, "decode_responses": True}


class LoopBoundHarness(ClientHarness):
    """A client with code of the user's, which only the user's loop may run."""

    capabilities = RedisHarness.capabilities & ~Capability.OFF_LOOP_RENEWAL

    def settings(self) -> dict[str, Any]:
        """Return credentials that come from a provider."""
        provider = redis.UsernamePasswordCredentialProvider("default", "any")
        return {"protocol": 3, "credential_provider": provider}


class SentinelHarness(RedisHarness):
    """``redis+sentinel://``: the foreigner goes to the primary. ``group`` as above."""

    capabilities = RedisHarness.capabilities | Capability.FAILS_OVER
    group: ClassVar[SentinelGroup]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return keys of its own."""
        prefix = f"{uuid4().hex}:"
        foreigner = PlainRedis(self.group.primary.url, prefix)
        return StoreLocation(self.group.url, prefix, foreigner=foreigner)


class RightsHarness(RedisHarness):
    """A user of its own for each test, with the rights of the documentation.

    Besides them the one that lists need. Every pattern of a key has the prefix in it.
    """

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return keys and a user of its own."""
        name = uuid4().hex
        prefix = f"{name}:"
        patterns = under(prefix, rules())
        others = [rule for rule in rules() if rule[0] not in "~&"]
        self.server.ask("ACL", "SETUSER", name, *others, *patterns, "+scan")
        url = url_of(self.server, name)
        return StoreLocation(url, prefix, foreigner=PlainRedis(url, prefix))


class TlsHarness(RedisHarness):
    """``rediss://`` at a server that demands a certificate of its clients."""

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return keys of its own; redis-py has other names for the files."""
        prefix, files = f"{uuid4().hex}:", self.server.certificates
        assert files is not None
        theirs = (
            f"rediss://localhost:{self.server.tls_port}/0"
            f"?ssl_ca_certs={files.authority}&ssl_certfile={files.certificate}"
            f"&ssl_keyfile={files.key}"
        )
        return StoreLocation(self.server.tls_url, prefix, PlainRedis(theirs, prefix))


class ClusterHarness(RedisHarness):
    """``redis+cluster://``: the foreigner finds the node. ``cluster`` as above."""

    capabilities = RedisHarness.capabilities & ~Capability.PUSHES
    cluster: ClassVar[Cluster]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return keys of its own."""
        prefix = f"{uuid4().hex}:"
        url = self.cluster.url
        return StoreLocation(url, prefix, foreigner=PlainCluster(url, prefix))
