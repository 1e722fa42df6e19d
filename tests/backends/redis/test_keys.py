"""The names of the keys."""

from __future__ import annotations

import re

import pytest

from aiorwlock_remote.backends.redis.keys import (
    Keys,
    PairKeys,
    resource_of,
    scan_pattern,
)
from aiorwlock_remote.backends.redis.scripts import LOOK, body
from aiorwlock_remote.core.names import key_pair, resource
from tests.backends.redis.one_resource import ResourceClient


def test_the_keys_lie_in_one_slot_and_are_all_declared() -> None:
    """Every key a script names is one of KEYS, and so are all it is called with."""
    keys = Keys(resource("foobar", 123, "p:"))
    names = [key for key in keys.args if isinstance(key, bytes)]
    assert keys.args[0] == len(names)
    assert {name.strip(b"{").split(b"}")[0] for name in names} == {keys.seat}
    for text in (body(), LOOK.text):
        used = re.findall(r"call\('(?!TIME|PUBLISH)\w+', ([\w\[\]]+)", text)
        assert used
        assert set(used) <= {"MUTEX", "STATE", "READERS", "QUEUE", "SET", *_declared()}


def _declared() -> set[str]:
    return {"KEYS[i]", *(f"KEYS[{i}]" for i in range(1, 5))}


@pytest.mark.parametrize("prefix", ["", "app:", "a/mutex_locks/", "ü*[x]?\\"])
def test_a_key_tells_its_resource(prefix: str) -> None:
    found = resource("a/b,c", "{d}", prefix)
    keys = Keys(found)
    for name in keys.args[1:5]:
        assert isinstance(name, bytes)
        named = resource_of(prefix, name)
        assert named == found
        assert named.shown == ("a/b,c", "{d}")
        assert resource_of(prefix + "x", name) is None
    assert resource_of(prefix, b"\xff") is None
    assert resource_of(prefix, b"{" + keys.seat + b"}.other") is None
    assert resource_of(prefix, f"mutex_locks/{prefix}nothing".encode()) is None


@pytest.mark.parametrize("prefix", ["", "app:", "ü*[x]?"])
def test_published_keys_of_a_pair_tell_it(prefix: str) -> None:
    found = key_pair("a:b", "{c}/d,e")
    *_, readers = names = PairKeys(found, prefix=prefix).args[1:6]
    for name in (names[0], readers):
        assert isinstance(name, bytes)
        assert resource_of(prefix, name) == found
        assert resource_of(prefix + "x", name) is None
    for strange in ("readlock:", "readlock::x", "writelock:a", "readlock:a:\n"):
        assert resource_of(prefix, (prefix + strange).encode()) is None


def test_scan_patterns_are_literal(client: ResourceClient) -> None:
    names = []
    for prefix in ("p*", "pq"):
        keys = Keys(resource("t?", 1, prefix))
        client.ask("SET", keys.seat, "x")
        client.ask("HSET", keys.args[2], "v", 1)
        names += [keys.seat, keys.args[2]]
    client.ask("SET", "mutex_locks/p*tx,1", "x")
    client.ask("SET", "p*block:t?", "x")
    found = client.ask("KEYS", scan_pattern("p*", "p*t?"))
    assert sorted(found) == sorted(names)  # resource_of recognises the other prefix
    assert len(client.ask("KEYS", scan_pattern("p*", None))) == 5
