"""A mutex set of histories, and what its scripts may do to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiorwlock_remote.backends.redis.connection.protocol import Arg
from aiorwlock_remote.backends.redis.scripts import SET_ENTER, SET_LEAVE
from aiorwlock_remote.locks.held import Held
from tests.recipes.fake_server import Server
from tests.recipes.fix_sets import KEY, QUEUE, STATE

KIND, FIRST = 7, 8
"""Where a script's arguments say what it is to do, and with what."""


@dataclass(frozen=True)
class Seen:
    """``grants``: name and lease by ticket; ``last``: tickets by name."""

    scores: dict[bytes, int]
    grants: dict[bytes, tuple[bytes, int]]
    last: dict[bytes, bytes]
    now: int

    @classmethod
    def of(cls, answers: list[Any], now: int) -> Seen:
        flat, fields = answers
        scores = {name: round(float(score) * 1e6) for name, score in _pairs(flat)}
        state, grants = dict(_pairs(fields)), {}
        for field, text in state.items():
            if field.startswith(b"t"):
                # A renewal that was stopped has left the score as it was before.
                known, lease, name = text.split(b",", 2)
                ours = {round(float(score) * 1e6) for score in known.split(b":")}
                theirs = scores.get(name) not in ours
                grants[field[1:]] = name, 0 if theirs else int(lease)
        last = {f[1:]: ticket for f, ticket in state.items() if f.startswith(b"m")}
        return cls(scores, grants, last, now)

    def live(self) -> dict[bytes, bytes]:
        """Names by the tickets that hold them."""
        return {
            ticket: name
            for ticket, (name, lease) in self.grants.items()
            if self.last.get(name) == ticket
            and self.scores.get(name, 0) > self.now - lease
        }


class SetServer(Server):
    """Has one set."""

    scripts = SET_ENTER, SET_LEAVE

    look = ("ZRANGE", KEY, 0, -1, "WITHSCORES"), ("HGETALL", STATE)

    def check(self, args: tuple[Arg, ...], answers: list[Any]) -> None:
        """Who has it keeps it until he or a withdrawal gives it back, and no longer."""
        *before, answer, _, _ = answers
        seen, kind = Seen.of(answers[3:], self.now), args[KIND]
        had, has = Seen.of(before, self.now).live(), seen.live()
        named = [a.encode() if isinstance(a, str) else a for a in args[FIRST:]]
        for ticket in had.keys() - has.keys():
            assert kind in ("r", "t"), "taken away"
            assert ticket in named, "taken away"
        assert kind == "a" or has.keys() <= had.keys(), "revived"
        if kind == "r":
            assert (answer[1][0] == 1) == (named[0] in had)
        assert sorted(seen.last.values()) == sorted(seen.grants), "a trace is left"

    def remove(self, name: str) -> None:
        """As another program does."""
        self.ask("ZREM", KEY, name)

    def write(self, name: str, score: float) -> None:
        """As another program does."""
        self.ask("ZADD", KEY, f"{score:.6f}", name)

    def score(self, name: str) -> float | None:
        """Seconds; None: there is no such mutex."""
        found = self.ask("ZSCORE", KEY, name)
        return None if found is None else float(found)

    def holds(self, held: Held) -> bool:
        """Whether this mutex is that ticket's now."""
        ticket, name = held._lease.ticket.encode(), held.name.encode()
        seen = Seen.of([self.ask(*one) for one in self.look], self.now)
        return seen.live().get(ticket) == name

    def grants(self, lease: float) -> list[bytes]:
        since = f"({self.now / 1e6 - lease:.6f}"
        return list(self.ask("ZRANGEBYSCORE", KEY, since, "+inf"))

    def traces(self) -> list[bytes]:
        """What waiting and holding left behind."""
        fields = [f for f in self.ask("HKEYS", STATE) if f not in (b"last", b"number")]
        held = self.ask("ZRANGEBYSCORE", KEY, "(0", "+inf")
        return [*fields, *held, *self.queue()]

    def queue(self) -> list[bytes]:
        """The places, some of which may have ended."""
        return list(self.ask("ZRANGE", QUEUE, 0, -1))

    def places(self) -> list[tuple[int, str]]:
        return [_place(place) for place in self.queue() if self._end(place) > self.now]

    def _end(self, place: bytes) -> int:
        entry: bytes = self.ask("HGET", STATE, b"p" + place) or b"0"
        return int(entry.partition(b",")[0])


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _place(place: bytes) -> tuple[int, str]:
    client_id, _, target = place.decode().partition(".0,")
    return int(client_id.removeprefix("client")), target
