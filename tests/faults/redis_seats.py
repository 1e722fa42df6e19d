"""What stands in Redis under our names, seen by plain redis-py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

import redis

SEATS = "mutex_locks/"
Plain = redis.Redis | redis.RedisCluster


class Left(TypedDict, total=False):
    """What is left of one resource. Absent: nothing of that kind."""

    seat: str
    writer: str
    upgrader: str
    readers: int
    places: int


def client(url: str) -> redis.Redis:
    """A plain client that answers in text."""
    return redis.Redis.from_url(url, decode_responses=True)


def left(plain: Plain) -> dict[str, Left]:
    """All resources that somebody holds or waits for, by the name of the seat."""
    found: dict[str, Left] = {}
    for name in cast("list[str]", plain.keys("*")):
        if name.startswith(SEATS):
            _of(found, name)["seat"] = cast("str", plain.get(name))
            continue
        seat, _, part = name.removeprefix("{").rpartition("}.")
        if part == "readers":
            _of(found, seat)["readers"] = plain.zcard(name)
        elif part == "queue":
            _of(found, seat)["places"] = plain.zcard(name)
        elif part == "state":
            state = cast("Mapping[str, str]", plain.hgetall(name))
            if state.get("writer"):
                _of(found, seat)["writer"] = state["writer"]
            if state.get("upgrader"):
                _of(found, seat)["upgrader"] = state["upgrader"]
    return found


def _of(found: dict[str, Left], seat: str) -> Left:
    return found.setdefault(seat, {})
