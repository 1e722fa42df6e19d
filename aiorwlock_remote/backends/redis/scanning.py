"""Which resources there are: what the names of keys tell."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiorwlock_remote.backends.redis.connection.calls import Ask
from aiorwlock_remote.backends.redis.errors import of_decoding
from aiorwlock_remote.backends.redis.keys import PARTS, SEAT
from aiorwlock_remote.core.key_pair import READ_LOCK, WRITE_LOCK, pair_of
from aiorwlock_remote.core.names import Resource, decode, from_key, under
from aiorwlock_remote.errors import ConfigurationError

SCAN_COUNT = 1000


async def found_at(
    ask: Ask, prefix: str, resource_type: str | None
) -> AsyncIterator[set[Resource]]:
    """The resources at one server, a page of SCAN at a time; perhaps repeatedly.

    It reads every key name of the database. What exists from beginning to end is found.
    """
    cursor = 0
    pattern = scan_pattern(prefix, resource_type)
    wanted = None if resource_type is None else decode(resource_type)
    while True:
        page = await ask("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        try:
            cursor, names = int(page[0]), page[1]
            found = [resource_of(prefix, name) for name in names]
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise of_decoding(exc, "SCAN") from exc
        yield {
            r for r in found if r is not None and wanted in (None, prefix + r.shown[0])
        }
        if cursor == 0:
            return


def resource_of(prefix: str, name: bytes) -> Resource | None:
    """The resource a key belongs to, if it has a name under this prefix.

    Of a pair, its two published keys tell; those beside them are nothing without.
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    for lock in (READ_LOCK, WRITE_LOCK):
        if text.startswith(prefix + lock):
            return _pair(text[len(prefix + lock) :])
    if text.startswith("{"):
        text, brace, part = text[1:].rpartition("}.")
        if not brace or part not in PARTS:
            return None
    if not text.startswith(SEAT):
        return None
    found = from_key(text.removeprefix(SEAT))
    return under(found, prefix) if found.type and found.id else None


def scan_pattern(prefix: str, resource_type: str | None) -> str:
    """A glob that every key of these resources matches (and others may)."""
    # What mutex_locks/, readlock: and writelock: have in common: one reading for all.
    # The prefix is behind the first and before the others, so it is no part of this.
    start = "*[_de]lock[s:]*"
    if (
        resource_type is None or "%" in resource_type
    ):  # encoded in one kind of name only
        return start
    return f"{start}{_literal(resource_type.removeprefix(prefix))}[,:]*"


def _pair(name: str) -> Resource | None:
    try:
        return pair_of(name)
    except ConfigurationError:  # another program's key
        return None


def _literal(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in text)
