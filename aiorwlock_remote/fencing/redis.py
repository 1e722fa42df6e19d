"""Strings of Redis that refuse old fences: two scripts, for a client of yours."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Protocol

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.checks import check_fence

_HERE = files("aiorwlock_remote.fencing")

FENCED_SET = _HERE.joinpath("fenced_set.lua").read_text("utf-8")
"""Its head says what it takes and returns, for clients in any language."""

FENCED_GET = _HERE.joinpath("fenced_get.lua").read_text("utf-8")


class RedisClient(Protocol):
    """``redis.asyncio.Redis`` or ``RedisCluster``, or Valkey's."""

    def eval(self, script: str, numkeys: int, /, *args: Any) -> Any:  # noqa: ANN401 - theirs
        """Run a script; awaitable."""


async def fenced_set(
    client: RedisClient,
    key: str,
    value: str | bytes,
    fence: int,
    *,
    ttl: float | None = None,
) -> None:
    """``SET``, unless a higher fence has been here. ``ttl``: the value's, in seconds.

    A client that repeats it after a lost reply does no harm: the fence is equal.

    Raises:
        StaleFence: a higher one has been here.
        BadFence: it is none.
        ConfigurationError: a ``ttl`` that is no positive number, a key as ``fence_key``
            refuses it.
    """
    check_seconds("ttl", ttl, least=0.001)
    life = "" if ttl is None else round(ttl * 1000)
    keys = key, fence_key(key)
    reply = await client.eval(FENCED_SET, 2, *keys, check_fence(fence), value, life)
    _accepted(reply, key, fence)


async def fenced_get(client: RedisClient, key: str, fence: int) -> Any:  # noqa: ANN401 - str or bytes, as the client was told
    """``GET``, unless a higher fence has been here; keeps lower ones out from now on.

    Raises:
        StaleFence: a higher one has been here.
        BadFence: it is none.
        ConfigurationError: a key as ``fence_key`` refuses it.
    """
    reply = await client.eval(FENCED_GET, 2, key, fence_key(key), check_fence(fence))
    return _accepted(reply, key, fence)


def fence_key(key: str) -> str:
    """Where the fence of a key is kept: in the same slot of a cluster.

    Raises:
        ConfigurationError: a key in which braces make no tag, an empty one, no text.
    """
    if not isinstance(key, str):
        raise ConfigurationError(what=f"a key must be str, not {type(key).__name__}")
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    if opened and closed and tag:
        return f"{key}.fence"
    if not key or "}" in key:
        raise ConfigurationError(what=f"key {quoted(key)} has no fence in its slot")
    return f"{{{key}}}.fence"


def _accepted(reply: Any, key: str, fence: int) -> Any:  # noqa: ANN401 - Redis's
    accepted, told = reply
    if not accepted:
        raise StaleFence(resource=key, fence=fence, highest=int(told))
    return told
