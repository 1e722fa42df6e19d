"""A readers-writer lock on a pair of keys, and what its scripts may do to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiorwlock_remote.backends.redis.connection.protocol import Arg
from aiorwlock_remote.backends.redis.scripts import PAIR_ENTER, PAIR_LEAVE
from aiorwlock_remote.locks.held import Held
from tests.recipes.fake_server import CLOCK, Server
from tests.recipes.fix_pairs import EXPIRY, QUEUE, READ_KEY, STATE, WRITE_KEY

KIND, FIRST = 7, 9
"""Where a script's arguments say what it is to do, and with what."""
FOREIGN = b"joe"
"""How other programs' identifiers begin."""
LANES = {"r": "read", "w": "write"}


@dataclass(frozen=True)
class Seen:
    """What programs see that know nothing of ours, and what we know of it.

    ``ends``: microseconds, by ticket; of the writer, who is in ``writes``, too.
    ``queue``: the stored places of writers, of which some have the ticket that a step
    may grant.
    """

    string: bytes | None
    string_ends: int
    members: frozenset[bytes]
    ends: dict[bytes, int]
    writes: bytes | None
    described: frozenset[bytes]
    queue: tuple[bytes, ...]
    now: int

    @classmethod
    def of(cls, answers: list[Any], now: int) -> Seen:
        string, until, members, flat, scores = answers
        state = dict(zip(flat[::2], flat[1::2], strict=True))
        ends = {ticket: int(score) for ticket, score in zip(*[iter(scores)] * 2)}  # noqa: B905
        described = {f[7:] for f in state if f.startswith(b"reader:")}
        writes = None
        if state.get(b"writer"):
            writes, _, end, _ = state[b"writer"].split(b",", 3)
            ends[writes] = int(end)
            described.add(writes)
        if 0 < until * 1000 <= now:
            string = None
        there = frozenset(members)
        queue = tuple(text for field, text in state.items() if field[:6] == b"place:")
        known = frozenset(described)
        return cls(string, until, there, ends, writes, known, queue, now)

    def live(self) -> dict[bytes, str]:
        """The modes of the tickets that hold it."""
        live = {ticket for ticket, end in self.ends.items() if end > self.now}
        modes = dict.fromkeys(live & self.members - {self.writes}, "read")
        if self.writes in live and self.string == self.writes:
            modes[self.writes] = "write"
        return modes

    def may_be_pushed(self, ticket: bytes) -> bool:
        """Whether a place in the queue has the ticket, to be granted by any step."""
        return any(ticket in place for place in self.queue)

    def others(self) -> set[bytes]:
        """Those of other programs."""
        there = {*self.members, self.string or b""}
        return {one for one in there if one.startswith(FOREIGN)}


class PairServer(Server):
    """Has one pair."""

    scripts = PAIR_ENTER, PAIR_LEAVE
    look = (
        *(("GET", WRITE_KEY), ("PEXPIRETIME", WRITE_KEY), ("SMEMBERS", READ_KEY)),
        *(("HGETALL", STATE), ("ZRANGE", EXPIRY, 0, -1, "WITHSCORES")),
    )

    def check(self, args: tuple[Arg, ...], answers: list[Any]) -> None:
        """Nobody beside a writer; who has it keeps it until it is given back."""
        many, kind = len(self.look), args[KIND]
        before = Seen.of(answers[:many], self.now)
        after = Seen.of(answers[many + 1 :], self.now)
        had, has = before.live(), after.live()
        named = [a.encode() if isinstance(a, str) else a for a in args[FIRST:]]
        assert not (after.string and after.members), "beside a writer"
        assert before.others() == after.others(), "of another program"
        for ticket in had.keys() - has.keys():
            assert kind in ("r", "h", "t"), "taken away"
            assert ticket in named, "taken away"
        for ticket in has.keys() - had.keys():
            if before.may_be_pushed(ticket):
                assert has[ticket] == "write", "pushed to a reader"
                continue
            assert kind not in ("n", "t"), "revived"
            assert ticket in named, "granted to nobody"
        if kind in ("r", "h"):
            self._check_release(named[1] in had, answers[many])
        self._check_traces(after)

    @staticmethod
    def _check_release(held: bool, answer: Any) -> None:  # noqa: ANN401
        if isinstance(answer, list) and answer[0] == -9:
            answer = answer[1]
        if isinstance(answer, list) and answer[0] == -5:
            assert answer[1] == held
        else:
            assert held

    @staticmethod
    def _check_traces(seen: Seen) -> None:
        """What is known is what is there, and ends."""
        ours = seen.members - seen.others()
        assert ours <= seen.ends.keys(), "it would never end"
        assert seen.ends.keys() == seen.described
        if seen.string and seen.string not in seen.others():
            assert seen.string == seen.writes
            assert seen.string_ends == -(-seen.ends[seen.string] // 1000)

    def holds(self, held: Held) -> bool:
        ticket = held._lease.ticket.encode()
        return self._seen().live().get(ticket) == held.mode

    def grants(self, lease: float) -> list[bytes]:
        assert lease
        seen = self._seen()
        return [*seen.live(), *seen.others()]

    def traces(self) -> list[bytes]:
        """What waiting and holding left behind."""
        keys = set(self.ask("KEYS", "*")) - {STATE.encode(), CLOCK.encode()}
        return [*keys, *self._seen().described]

    def places(self) -> list[tuple[int, str]]:
        flat = self.ask("HGETALL", STATE)
        state = dict(zip(flat[::2], flat[1::2], strict=True))
        found = []
        for member in self.ask("ZRANGE", QUEUE, 0, -1):
            text = state.get(b"place:" + member)
            if text and int(text.split(b",")[2]) > self.now:
                mode, _, client_id = member.decode().partition(":")
                found.append((int(client_id.removeprefix("client")), LANES[mode]))
        return found

    def _seen(self) -> Seen:
        return Seen.of([self.ask(*one) for one in self.look], self.now)
