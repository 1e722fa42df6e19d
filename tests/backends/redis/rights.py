"""The rights that the documentation says a user needs, and users who have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.redis import RedisServer

PAGE = (Path(__file__).parents[3] / "docs/stores/redis.md").read_text("utf-8")
LINES = re.findall(r"^ACL SETUSER locks (.*)$", PAGE, re.MULTILINE)


def rules() -> list[str]:
    """What locks need."""
    return _rules(0)


def set_rules() -> list[str]:
    """What a mutex set ``proxies`` needs besides."""
    return _rules(1)


def pair_rules() -> list[str]:
    """What a lock on a pair of keys needs besides."""
    return _rules(2)


def cluster_rules() -> list[str]:
    """What a cluster needs besides."""
    return _rules(3)


def occupancy_rules() -> list[str]:
    """What occupying objects needs besides."""
    return _rules(4)


def _rules(number: int) -> list[str]:
    needed: str = LINES[number]
    return needed.split()


def under(prefix: str, rules: list[str]) -> list[str]:
    """The patterns among the rules, for locks with that prefix."""
    patterns = [rule for rule in rules if rule[0] in "~&"]
    return [rule.replace("mutex_locks/", f"mutex_locks/{prefix}") for rule in patterns]


def url_of(server: RedisServer, name: str = "locks") -> str:
    """The URL of a user who has the password of the documentation."""
    return f"redis://{name}:password@127.0.0.1:{server.port}/0"


@contextmanager
def user(server: RedisServer, rules: list[str]) -> Iterator[str]:
    """The URL of a user with these rights."""
    server.ask("ACL", "SETUSER", "locks", *rules)
    server.ask("FLUSHALL")
    yield url_of(server)
    server.ask("ACL", "DELUSER", "locks")


def objects(server: RedisServer) -> set[bytes]:
    """What the server refused."""
    entries = server.ask("ACL", "LOG", 100)  # unless asked for more it tells ten
    return {entry[entry.index(b"object") + 1] for entry in entries}
