"""A primary with one replica, for ``min_replicas``."""

from __future__ import annotations

from collections.abc import Awaitable

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable
from tests.servers.process import until
from tests.servers.redis import RedisServer

QUICK = "command_timeout=8"  # two seconds for the replicas of a busy machine


class Pair:
    """A primary and its one replica."""

    def __init__(self, primary: RedisServer, replica: RedisServer) -> None:
        self.primary = primary
        self.replica = replica
        until(lambda: self.acknowledged() == 1, "the replica is in step")

    @property
    def url(self) -> str:
        return f"{self.primary.url}?{QUICK}"

    def acknowledged(self) -> int:
        write = ("PUBLISH", "nobody", "?")
        count: int = self.primary.ask_all(write, ("WAIT", 1, 100))[1]
        return count

    def level(self) -> bool:
        _, offset, replicas = self.primary.ask("ROLE")
        return [int(replica[2]) for replica in replicas] == [offset]

    def held(self, key: str) -> bool:
        return bool(self.primary.ask("EXISTS", f"mutex_locks/{key}"))


async def too_few(acquiring: Awaitable[object], have: int = 0, of: int = 1) -> None:
    """Get how many have it, in fields and in words."""
    with anyio.fail_after(10), pytest.raises(BackendUnavailable) as caught:
        await acquiring
    assert caught.value.replicas == have
    assert f"{have} of {of} replicas" in str(caught.value)
