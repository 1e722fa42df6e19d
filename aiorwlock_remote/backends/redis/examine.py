"""Findings of ``rwlock doctor`` on a Redis server: what its settings mean for locks.

If the server denies the URL's user a question, a finding says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aiorwlock_remote.backends.redis.connection.connector import info_fields, text_of
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.ports import Clock, Finding

Send = Callable[..., Awaitable[Any]]

_SMALL_SKEW = 0.1
"""Clock difference in seconds up to which the finding is "good"."""
_EVENTS = frozenset("gx$A")
_ENOUGH_BUFFER = 1 << 20
"""Bytes of replies and messages that 3,000 requests at once need. One request needs
more than 16 kB, as the server counts in blocks."""


async def examine(send: Send, clock: Clock) -> AsyncGenerator[Finding, None]:
    """Yield what ``rwlock doctor`` finds about the settings of one server.

    ``send("CONFIG", "GET", name)`` sends a command to the server and awaits its reply.
    The server's clock is compared with ``clock``.
    """
    info = info_fields(await allowed(send("INFO")) or "")
    yield _version(info)
    yield _role(info)
    yield await _skew(send, clock)
    yield _persistence(info, await _setting(send, "appendfsync"))
    yield _memory(info, await _setting(send, "maxmemory-policy"))
    yield _buffers(await _setting(send, "client-output-buffer-limit"))
    yield _events(await _setting(send, "notify-keyspace-events"))
    yield await _kill(send)


async def findings_at(
    where: str, found: AsyncGenerator[Finding, None]
) -> AsyncGenerator[Finding, None]:
    """Yield the findings ``found``, with the server ``where`` added to their names.

    If the server cannot be reached, the last finding says so.
    """
    try:
        async with aclosing(found):
            async for finding in found:
                yield replace(finding, name=f"{finding.name} {where}")
    except BackendUnavailable as exc:
        meaning = f"its locks wait until it is back, or replaced: {exc.what}"
        yield Finding(f"reachable {where}", "no", meaning, "bad")


async def _setting(send: Send, name: str) -> str | None:
    found = await allowed(send("CONFIG", "GET", name))
    values = [] if found is None else [text_of(value) for value in dict(found).values()]
    return values[0] if values else None


async def allowed(reply: Awaitable[Any]) -> Any:  # noqa: ANN401 - not decoded
    """Await the reply to a command; return None if the user may not send it."""
    try:
        return await reply
    except BackendUnavailable:
        raise
    except BackendError:
        return None


def _version(info: dict[str, str]) -> Finding:
    if not info:
        return Finding("version", "not told", "the user may not run INFO", "note")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    return Finding("version", f"{name} {version}", "fit for locks")


def _role(info: dict[str, str]) -> Finding:
    role = info.get("role", "not told")
    replicas = info.get("connected_slaves", "0")
    if role == "master" and replicas != "0":
        meaning = (
            "replication is asynchronous: a failover may forget the last grants;"
            " fences keep rising and protect what checks them"
        )
        return Finding("role", f"primary of {replicas} replicas", meaning, "note")
    if role == "master":
        return Finding("role", "primary", "no replica: down means down")
    meaning = "locks are taken at the primary only"
    return Finding("role", role, meaning, "note" if role == "not told" else "bad")


async def _skew(send: Send, clock: Clock) -> Finding:
    before = clock.now()
    seconds, micros = await send("TIME")
    took = clock.now() - before
    # The server read its clock half a round trip ago, about.
    skew = int(seconds) + int(micros) / 1e6 - (clock.wall() - took / 2)
    ours = abs(skew) <= max(_SMALL_SKEW, took)
    value = f"{skew:+.3f} s from this host's"
    meaning = "leases are counted by the server's clock alone"
    if ours:
        return Finding("clock", value, meaning)
    meaning += "; dates shown by the commands are the server's"
    return Finding("clock", value, meaning, "note")


def _persistence(info: dict[str, str], fsync: str | None) -> Finding:
    if not info:
        return Finding("persistence", "not told", "the user may not run INFO", "note")
    if info.get("aof_enabled") == "1":
        if fsync == "always":
            return Finding("persistence", "AOF, each write", "grants survive a crash")
        lost = "the last second" if fsync == "everysec" else "what was not yet on disk"
        meaning = f"a crash of the host forgets {lost}; a crash of the server alone,"
        value = f"AOF, fsync {fsync or 'not told'}"
        return Finding("persistence", value, f"{meaning} nothing")
    meaning = "a restart forgets grants: two holders until the older lease ends;"
    meaning += " fences rise all the same"
    return Finding("persistence", "no AOF", meaning, "note")


def _memory(info: dict[str, str], policy: str | None) -> Finding:
    limit = info.get("maxmemory_human", "0B")
    if info.get("maxmemory", "0") == "0":
        return Finding("memory", "no limit", "nothing is evicted")
    if policy is None:
        meaning = "if the policy is not noeviction, locks can be evicted"
        return Finding("memory", f"{limit}, policy not told", meaning, "note")
    if policy == "noeviction":
        meaning = "full: no new grants; renewals and releases go on"
        return Finding("memory", f"{limit}, noeviction", meaning)
    meaning = "locks can be evicted like any key: two holders; give locks a server with"
    meaning += " maxmemory-policy noeviction"
    return Finding("memory", f"{limit}, {policy}", meaning, "bad")


def _buffers(limits: str | None) -> Finding:
    name = "buffers"
    if limits is None:
        return Finding(name, "not told", "1 MB for pubsub clients is enough", "note")
    words = limits.split()
    at = words.index("pubsub") + 1
    hard, soft, seconds = map(int, words[at : at + 3])
    limit = min((n for n in (hard, 0 if seconds else soft) if n), default=0)
    if not limit:
        return Finding(name, "no limit for pubsub", "replies are never cut off")
    value = f"{limit // 1024} kB for pubsub"
    if limit >= _ENOUGH_BUFFER:
        return Finding(name, value, "replies are never cut off")
    # A connection that subscribes counts as a pubsub client for all its replies.
    meaning = "the server closes connections with many replies at once; 1 MB is enough"
    meaning += " (client-output-buffer-limit pubsub)"
    return Finding(name, value, meaning, "bad")


def _events(flags: str | None) -> Finding:
    if flags is None:
        return Finding("events", "not told", "they are used if they come", "note")
    if "K" in flags and _EVENTS & set(flags):
        meaning = "a foreign program's release wakes waiters at once"
        return Finding("events", flags, meaning)
    meaning = "a foreign program's release is seen at the next poll, within 1.5 s; ours"
    meaning += " need no events (notify-keyspace-events Kgx would tell)"
    return Finding("events", flags or "off", meaning)


async def _kill(send: Send) -> Finding:
    try:
        # No client has this number: only the right to kill is tried.
        await send("CLIENT", "KILL", "ID", 0)
    except BackendUnavailable:
        raise
    except Unsupported:
        meaning = "after a lost connection, requests still on its way may be carried"
        meaning += " out late; their grants end with the lease (+client|kill)"
        return Finding("rights", "no CLIENT KILL", meaning, "note")
    except BackendError:
        pass  # no client has the number 0, as was to be shown
    return Finding("rights", "CLIENT KILL", "a lost connection cannot act later")
