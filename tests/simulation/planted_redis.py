"""Faults planted into the Redis client and its scripts, each into one layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.connection.protocol import (
    NoScriptRetries,
    RespProtocol,
)
from tests.simulation.planted import plant
from tests.simulation.redis_data import LuaRunner

# ---------------------------------------------------------------------- the scripts


@contextmanager
def other_script(old: str, new: str) -> Iterator[None]:
    """Context manager: the servers run the scripts with one thing changed."""
    sound, changed = LuaRunner.run, 0

    def broken(self: LuaRunner, keyspace: Any, text: str, *rest: Any) -> Any:
        nonlocal changed
        changed += old in text
        return sound(self, keyspace, text.replace(old, new), *rest)

    with patch.object(LuaRunner, "run", broken):
        yield
    assert changed, f"the scripts have changed: {old}"


@plant("redis")
def a_script_does_not_compare_the_ticket() -> AbstractContextManager[Any]:
    return other_script("if ticket == ARGV[5] and tonumber(expires) > now", "if true")


# --------------------------------------------------------------------- the protocol


@plant("redis")
def a_message_takes_the_place_of_a_reply() -> AbstractContextManager[Any]:
    sound = RespProtocol._pushed

    def broken(self: RespProtocol, push: list[Any]) -> None:
        sound(self, push)
        if push[0] == b"message" and len(self.in_flight) > 1:
            self.in_flight.rotate(1)

    return patch.object(RespProtocol, "_pushed", broken)


@plant("redis")
def forgotten_scripts_are_not_loaded() -> AbstractContextManager[Any]:
    return patch.object(NoScriptRetries, "keeps", lambda *_: False)


# ----------------------------------------------------------------------- the routes


@plant("cluster")
def a_call_does_not_follow_its_slot() -> AbstractContextManager[Any]:
    return patch.object(ClusterClient, "redirected", lambda *_: False)


# -------------------------------------------------------------------- the Sentinels


@plant("failovers")
def a_former_primary_is_believed() -> AbstractContextManager[Any]:
    return patch.object(RespProtocol, "leave_former_primary", lambda _: False)
