"""Redis strings that refuse old fences: two scripts, run by a client of yours."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Protocol

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.checks import check_fence

# The head of each script says what it takes and returns, for clients in any language.
_SCRIPTS = files("aiorwlock_remote.fencing")
FENCED_SET = _SCRIPTS.joinpath("fenced_set.lua").read_text("utf-8")
FENCED_GET = _SCRIPTS.joinpath("fenced_get.lua").read_text("utf-8")


class RedisClient(Protocol):
    """What is needed of the user's Redis client: a method that runs a Lua script.

    ``redis.asyncio.Redis`` and ``RedisCluster`` have it, and those of valkey-py.
    """

    def eval(self, script: str, numkeys: int, /, *args: Any) -> Any: ...  # noqa: ANN401 - awaitable


async def fenced_set(
    client: RedisClient,
    key: str,
    value: str | bytes,
    fence: int,
    *,
    ttl: float | None = None,
) -> None:
    """Set a string unless the key has seen a higher fence.

    A client may repeat the call after a lost reply, because an equal fence is accepted.
    If the caller is cancelled, the value may be set or not.

    Args:
        client: Runs the script.
        key: The key of the string; ``fence_key(key)`` keeps the fence.
        value: The new value.
        fence: The fence of the grant, such as ``Held.fence``.
        ttl: Seconds after which the value expires, at least 0.001; its fence never
            does.

    Raises:
        StaleFence: The key has seen a higher fence.
        BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
        ConfigurationError: ``ttl`` is not a positive number, or ``fence_key`` refuses
            the key.
    """
    # Redis counts in whole milliseconds (PX), and refuses 0.
    check_seconds("ttl", ttl, least=0.001)
    millis = "" if ttl is None else round(ttl * 1000)
    keys = key, fence_key(key)
    reply = await client.eval(FENCED_SET, 2, *keys, check_fence(fence), value, millis)
    _accepted(reply, key, fence)


async def fenced_get(client: RedisClient, key: str, fence: int) -> Any:  # noqa: ANN401 - str or bytes, as the client decodes
    """Return a string, None if there is none; raise if the key saw a higher fence.

    The key refuses lower fences from then on.

    Raises:
        StaleFence: The key has seen a higher fence.
        BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
        ConfigurationError: ``fence_key`` refuses the key.
    """
    reply = await client.eval(FENCED_GET, 2, key, fence_key(key), check_fence(fence))
    return _accepted(reply, key, fence)


def fence_key(key: str) -> str:
    """Return the key that keeps the fence, in the cluster slot of ``key``.

    Raises:
        ConfigurationError: The key is empty, is not a ``str``, or has a brace without
            being a hash tag, so that no other key is known to share its slot.
    """
    if not isinstance(key, str):
        raise ConfigurationError(what=f"a key must be str, not {type(key).__name__}")
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    if opened and closed and tag:
        return f"{key}.fence"
    # Redis ends a tag at the first "}": a key with one cannot be put between braces.
    if not key or "}" in key:
        raise ConfigurationError(
            what=f"key {quoted(key)} has no place for a fence in its slot",
            hint="use a key without braces, or with a hash tag such as {stock}/7",
        )
    return f"{{{key}}}.fence"


def _accepted(reply: Any, key: str, fence: int) -> Any:  # noqa: ANN401 - as Redis answers
    done, result = reply
    if not done:
        raise StaleFence(resource=key, fence=fence, highest=int(result))
    return result
