"""The data of a simulated Redis server, and the Lua scripts that change it.

The scripts are the library's own, run by Lua 5.1, as a server does. Only the commands
that they use are known; one that is not fails the run. The semantics are those of
Redis 7 (https://redis.io/docs/latest/commands/); ``test_simulation`` compares them with
the core, as the differential test does with a real server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from typing import Any, TypeAlias, TypeVar

from lupa import lua51

T = TypeVar("T")
State: TypeAlias = "tuple[dict[bytes, Any], dict[bytes, int]]"
"""Values by key, and when keys expire (milliseconds)."""

PRELUDE = b"""
local raw, sha1hex, decode = ...
cjson = {decode = decode, null = {}}
redis = {pcall = raw, sha1hex = sha1hex}
function redis.call(...)
  local found = raw(...)
  if type(found) == 'table' and found.err then error(found, 0) end
  return found
end
function redis.error_reply(text) return {err = text} end
return function(chunk, keys, argv)
  KEYS, ARGV = keys, argv
  local done, found = pcall(chunk)
  if done or type(found) == 'table' then return found end
  return {err = 'ERR ' .. tostring(found)}
end
"""


class RedisError(Exception):
    """An error reply."""


class Hash(dict[bytes, bytes]):
    pass


class Set(set[bytes]):
    pass


class SortedSet(dict[bytes, float]):
    """Scores of members."""

    def ordered(self) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in self.items())


class Keyspace:
    """Keys and values; ``now()`` is the server's time in microseconds."""

    def __init__(
        self,
        now: Callable[[], int],
        publish: Callable[[bytes, bytes], int],
    ) -> None:
        self.values: dict[bytes, Any] = {}
        self.expires: dict[bytes, int] = {}
        self._now = now
        self._publish = publish

    def copy(self) -> State:
        values = {
            key: value if isinstance(value, bytes) else type(value)(value)
            for key, value in self.values.items()
        }
        return values, dict(self.expires)

    def restore(self, state: State) -> None:
        self.values, self.expires = state

    def give(self, other: Keyspace, chosen: Callable[[bytes], bool]) -> None:
        """Move the chosen keys to another server."""
        for key in [key for key in self.values if chosen(key)]:
            other.values[key] = self.values.pop(key)
            if (ends := self.expires.pop(key, None)) is not None:
                other.expires[key] = ends

    def carry_out(self, name: bytes, *args: bytes) -> Any:
        method = getattr(self, f"_{name.decode().lower()}", None)
        assert method is not None, f"the simulated server does not know {name!r}"
        return method(*args)

    def _found(self, key: bytes, kind: type[T]) -> T | None:
        ends = self.expires.get(key)
        if ends is not None and ends * 1000 <= self._now():
            self._del(key)
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            raise RedisError("WRONGTYPE of the key")
        return value

    def _made(self, key: bytes, kind: type[T]) -> T:
        found = self._found(key, kind)
        if found is None:
            found = self.values[key] = kind()
        return found

    def _dropped_if_empty(self, key: bytes) -> None:
        if not self.values[key]:
            self._del(key)

    # Keys

    def _time(self) -> list[bytes]:
        seconds, micros = divmod(self._now(), 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    def _flushdb(self) -> str:
        self.values.clear()
        self.expires.clear()
        return "OK"

    def _del(self, *keys: bytes) -> int:
        found = [key for key in keys if self.values.pop(key, None) is not None]
        for key in keys:
            self.expires.pop(key, None)
        return len(found)

    def _persist(self, key: bytes) -> int:
        self._found(key, object)
        return int(self.expires.pop(key, None) is not None)

    def _pexpireat(self, key: bytes, at: bytes, *options: bytes) -> int:
        assert set(options) <= {b"NX"}, options
        if self._found(key, object) is None or (options and key in self.expires):
            return 0
        self.expires[key] = int(at)
        return 1

    def _pexpire(self, key: bytes, after: bytes, *options: bytes) -> int:
        at = b"%d" % (self._now() // 1000 + int(after))
        return self._pexpireat(key, at, *options)

    def _pexpiretime(self, key: bytes) -> int:
        if self._found(key, object) is None:
            return -2
        return self.expires.get(key, -1)

    # Strings

    def _get(self, key: bytes) -> bytes | None:
        return self._found(key, bytes)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        asked = list(options)
        ends: int | None = None
        if b"PXAT" in asked:
            ends = int(asked.pop(asked.index(b"PXAT") + 1))
        if b"PX" in asked:
            ends = self._now() // 1000 + int(asked.pop(asked.index(b"PX") + 1))
        found = self._found(key, bytes if b"GET" in asked else object)
        assert set(asked) <= {b"PXAT", b"PX", b"NX", b"GET"}, asked
        if b"NX" not in asked or found is None:
            self.values[key] = value
            self.expires.pop(key, None)
            if ends is not None:
                self.expires[key] = ends
        return found if b"GET" in asked else "OK"

    # Hashes

    def _hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self._found(key, Hash) or Hash()).get(field)

    def _hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        found = self._found(key, Hash) or Hash()
        return [found.get(field) for field in fields]

    def _hgetall(self, key: bytes) -> list[bytes]:
        found = self._found(key, Hash) or Hash()
        return [part for pair in found.items() for part in pair]

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        assert len(pairs) % 2 == 0
        fields = self._made(key, Hash)
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fields) - before

    def _hdel(self, key: bytes, *fields: bytes) -> int:
        found = self._found(key, Hash)
        if found is None:
            return 0
        gone = [field for field in fields if found.pop(field, None) is not None]
        self._dropped_if_empty(key)
        return len(gone)

    def _hlen(self, key: bytes) -> int:
        return len(self._found(key, Hash) or ())

    def _hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        fields = self._made(key, Hash)
        fields[field] = b"%d" % (int(fields.get(field, b"0")) + int(by))
        return int(fields[field])

    # Sets

    def _scard(self, key: bytes) -> int:
        return len(self._found(key, Set) or ())

    def _sadd(self, key: bytes, *members: bytes) -> int:
        found = self._made(key, Set)
        before = len(found)
        found.update(members)
        return len(found) - before

    def _srem(self, key: bytes, *members: bytes) -> int:
        found = self._found(key, Set)
        if found is None:
            return 0
        before = len(found)
        found.difference_update(members)
        gone = before - len(found)
        self._dropped_if_empty(key)
        return gone

    def _sismember(self, key: bytes, member: bytes) -> int:
        return int(member in (self._found(key, Set) or ()))

    def _smembers(self, key: bytes) -> list[bytes]:
        return sorted(self._found(key, Set) or ())

    def _srandmember(self, key: bytes, count: bytes) -> list[bytes]:
        return self._smembers(key)[: int(count)]

    # Sorted sets

    def _zcard(self, key: bytes) -> int:
        return len(self._found(key, SortedSet) or ())

    def _zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self._found(key, SortedSet) or SortedSet()).get(member)
        return None if score is None else number(score)

    def _zadd(self, key: bytes, *rest: bytes) -> int:
        pairs = list(rest)
        only_new = pairs[0] == b"NX"
        if only_new:
            del pairs[0]
        scores = self._made(key, SortedSet)
        before = len(scores)
        for score, member in zip(pairs[::2], pairs[1::2], strict=True):
            if not (only_new and member in scores):
                scores[member] = float(score)
        return len(scores) - before

    def _zrem(self, key: bytes, *members: bytes) -> int:
        found = self._found(key, SortedSet)
        if found is None:
            return 0
        gone = [member for member in members if found.pop(member, None) is not None]
        self._dropped_if_empty(key)
        return len(gone)

    def _zrange(
        self, key: bytes, first: bytes, last: bytes, *options: bytes
    ) -> list[bytes]:
        if b"BYSCORE" in options:
            kept = tuple(option for option in options if option != b"BYSCORE")
            return self._zrangebyscore(key, first, last, *kept)
        assert set(options) <= {b"REV", b"WITHSCORES"}, options
        found = (self._found(key, SortedSet) or SortedSet()).ordered()
        if b"REV" in options:
            found.reverse()
        begin, end = (
            int(n) + len(found) if int(n) < 0 else int(n) for n in (first, last)
        )
        return members(found[max(begin, 0) : end + 1], b"WITHSCORES" in options)

    def _zrangebyscore(
        self, key: bytes, least: bytes, most: bytes, *options: bytes
    ) -> list[bytes]:
        asked = list(options)
        limit = None
        if b"LIMIT" in asked:
            at = asked.index(b"LIMIT")
            limit = slice(int(asked[at + 1]), int(asked[at + 1]) + int(asked[at + 2]))
            del asked[at : at + 3]
        assert set(asked) <= {b"REV", b"WITHSCORES"}, options
        if b"REV" in asked:  # then the greatest score is named first
            least, most = most, least
        found = self._between(key, least, most)
        if b"REV" in asked:
            found.reverse()
        return members(found[limit] if limit else found, b"WITHSCORES" in asked)

    def _zcount(self, key: bytes, least: bytes, most: bytes) -> int:
        return len(self._between(key, least, most))

    def _between(
        self, key: bytes, least: bytes, most: bytes
    ) -> list[tuple[float, bytes]]:
        low, high = (float(bound.removeprefix(b"(")) for bound in (least, most))
        found = (self._found(key, SortedSet) or SortedSet()).ordered()
        if least.startswith(b"("):
            found = [pair for pair in found if pair[0] > low]
        if most.startswith(b"("):
            found = [pair for pair in found if pair[0] < high]
        return [pair for pair in found if low <= pair[0] <= high]

    # Messages

    def _publish_to(self, channel: bytes, payload: bytes) -> int:
        return self._publish(channel, payload)

    _spublish = _publish_to


def number(score: float) -> bytes:
    return b"inf" if math.isinf(score) else b"%.17g" % score


def members(found: Sequence[tuple[float, bytes]], scores: bool) -> list[bytes]:
    if not scores:
        return [member for _, member in found]
    return [part for score, member in found for part in (member, number(score))]


class LuaRunner:
    """Runs scripts; one for all servers, as a script keeps nothing."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self._load: Any = self._lua.eval(b"loadstring")
        sha1hex = lambda text: sha1(text, usedforsecurity=False).hexdigest().encode()  # noqa: E731
        self._pcall: Any = self._load(PRELUDE)(self._command, sha1hex, self._decode)
        self._chunks: dict[str, Any] = {}
        self._keyspace: Keyspace

    def run(
        self, keyspace: Keyspace, text: str, keys: list[bytes], argv: list[bytes]
    ) -> Any:
        """Return the reply of a script, as ``Keyspace.carry_out`` does."""
        chunk = self._chunks.get(text)
        if chunk is None:
            source = text.partition("\n")[2].encode()  # without the line of flags
            chunk = self._chunks[text] = self._load(source)
        self._keyspace = keyspace
        table = self._lua.table_from
        return self._from_lua(self._pcall(chunk, table(keys), table(argv)))

    def _command(self, name: bytes, *args: Any) -> Any:
        try:
            arguments = [a if isinstance(a, bytes) else number(a) for a in args]
            name = b"PUBLISH_TO" if name == b"PUBLISH" else name
            return self._to_lua(self._keyspace.carry_out(name, *arguments))
        except RedisError as exc:
            return self._lua.table_from({b"err": str(exc).encode()})

    def _decode(self, text: bytes) -> Any:
        return self._to_lua(_as_bytes(json.loads(text)))

    def _to_lua(self, value: Any) -> Any:
        if value is None:
            return False
        if isinstance(value, str):
            return self._lua.table_from({b"ok": value.encode()})
        if isinstance(value, list):
            return self._lua.table_from([self._to_lua(one) for one in value])
        return value

    def _from_lua(self, value: Any) -> Any:
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, int | float):
            return int(value)
        if isinstance(value, bytes):
            return value
        if value[b"err"] is not None:
            return RedisError(value[b"err"].decode())
        if value[b"ok"] is not None:
            return value[b"ok"].decode()
        found: list[Any] = []
        while (one := value[len(found) + 1]) is not None:
            found.append(self._from_lua(one))
        return found


def _as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_bytes(one) for one in value]
    return value.encode() if isinstance(value, str) else value


@cache
def lua_runner() -> LuaRunner:
    return LuaRunner()
