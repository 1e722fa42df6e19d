"""The scripts against the core: the same random history, compared at each command.

The clock is a key of the test's, and after three turns inside a process the seat is
vacated. For a long run: ``python -m tests.backends.redis.differential 1000000 [seed]``;
it starts a server of its own.
"""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import hiredis

from aiorwlock_remote.backends.redis.codec import decode_step, encode, pushed_in
from aiorwlock_remote.backends.redis.connection.protocol import Arg, pack
from aiorwlock_remote.backends.redis.errors import from_reply
from aiorwlock_remote.backends.redis.keys import Keys, PermitKeys, wake_channel
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core import admission, fast_path, transition
from aiorwlock_remote.core.commands import Acquire, IllegalCommand, Refused, Released
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.ports import Snapshot
from tests.backends.redis.random_commands import HEARING, SECOND
from tests.backends.redis.random_histories import ExpectedStep, RandomHistory
from tests.backends.redis.random_permits import RandomPermitHistory
from tests.servers.redis import RedisServer

MEMORY = 60
BATCH = 250
MORE = object()
TURNS, FEW_TURNS = "local MAX_LOCAL_TURNS = 100", "local MAX_LOCAL_TURNS = 3"
CLOCK = "local clock = call('TIME')"
OUR_CLOCK = "local clock = call('HMGET', 'clock', 's', 'u')"
SHORT_CUTS = "if stored[1] == '1' and not odd and"
NO_SHORT_CUTS = "if false and not odd and"
PLAIN = "if op == 'w' or op == 'r' and not ARGV[6] and ARGV[4] ~= 'r' then"
NO_PLAIN = "if false then"
MEANT_BY_ALL = {
    "v",
    "last",
    "number",
    "keep",
    "created",
    "updated",
    "endings",
    "future",
}


class Wire:
    """A blocking connection that sends many commands at once."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(60)
        self._reader = hiredis.Reader(notEnoughData=MORE)

    def ask(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """All answers, errors among them."""
        self._socket.sendall(b"".join(map(pack, commands)))
        return [self.take() for _ in commands]

    def take(self) -> Any:  # noqa: ANN401 - whatever comes
        """The next thing the server says."""
        while (found := self._reader.gets()) is MORE:
            self._reader.feed(self._socket.recv(1 << 20))
        return found

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Comparison:
    """Random histories sent to a server. ``change`` edits the scripts' text first."""

    keys: type[Keys] = Keys
    wire: type[Wire] = Wire

    def __init__(
        self,
        port: int,
        db: int = 0,
        *,
        change: Callable[[str], str] = str,
        older: Callable[[str], str] | None = None,
    ) -> None:
        """``older``: every other command is one of the scripts that it returns."""
        self.seen: Counter[str] = Counter()
        self.steps = 0
        self.exact = False
        self._wire, self._subscriber = self.wire(port), self.wire(port)
        self._wire.ask([("SELECT", db), ("FLUSHDB",)])
        for client_id in HEARING:
            self._subscriber.ask([("SUBSCRIBE", wake_channel(client_id))])
        self._shas: dict[str, bytes] = {}
        self._beside_older = older is not None
        for script in (self.keys.enter, self.keys.leave, self.keys.look):
            text = edited(script.text, CLOCK, OUR_CLOCK)
            if script is not self.keys.look:
                text = change(self.shortened(text))
                if older is not None:
                    self._shas[f"older {script.name}"] = self._loaded(older(text))
            self._shas[script.name] = self._loaded(text)

    def _loaded(self, text: str) -> bytes:
        (sha,) = self._wire.ask([("SCRIPT", "LOAD", text)])
        assert isinstance(sha, bytes), sha
        return sha

    def close(self) -> None:
        """Hang up."""
        self._wire.close()
        self._subscriber.close()

    def run(self, commands: int, seed: int, **kind: bool) -> None:
        """At least so many commands, each compared in all it says and does.

        ``kind``: quiet, busy or calm (RandomHistory).
        """
        keys = self.keys(resource("story", seed), MEMORY)
        random_history = self.random_history(seed, keys.seat.decode(), **kind)
        random_history.exact = self.exact
        if self._beside_older:
            random_history.least_passed = 1
        while commands > 0:
            with (
                patch.object(transition, "MAX_LOCAL_TURNS", 3),
                patch.object(admission, "MAX_LOCAL_TURNS", 3),
                patch.object(fast_path, "MAX_LOCAL_TURNS", 3),
            ):
                history = [random_history.next() for _ in range(BATCH)]
            self._compare(keys, history, seed)
            commands -= BATCH
            self.steps += BATCH

    def shortened(self, text: str) -> str:
        """The script that vacates the seat after a few turns."""
        return edited(text, TURNS, FEW_TURNS)

    def random_history(self, seed: int, seat: str, **kind: bool) -> RandomHistory:
        """Who tells the histories."""
        return RandomHistory(seed, seat, **kind)

    def check_seen(
        self, expected: ExpectedStep, snapshot: Snapshot, lives: list[int]
    ) -> None:
        """What lies there after a command, and how long it will."""
        assert plain(snapshot.record) == plain(expected.record), f"{snapshot.record}"
        assert snapshot.seat == expected.seat, f"seat: {snapshot.seat}"
        _kept(expected, lives)

    def _compare(self, keys: Keys, history: list[ExpectedStep], seed: int) -> None:
        look, look_args = keys.look, keys.args
        state, readers, queue = keys.args[2:5]
        requests: list[tuple[Arg, ...]] = []
        for number, expected in enumerate(history):
            requests += expected.before
            script, args = encode(keys, expected.command, expected.client_id)
            sha = self._shas[script.name]
            if number % 2:
                sha = self._shas.get(f"older {script.name}", sha)
            requests.append(("EVALSHA", sha, *args))
            requests.append(("EVALSHA", self._shas[look.name], *look_args))
            requests += [("PEXPIRETIME", key) for key in (state, readers, queue)]
        answers = iter(self._wire.ask(requests))
        heard: list[tuple[str, PushedGrant | None]] = []
        for number, expected in enumerate(history):
            for _ in expected.before:
                done = next(answers)
                assert not isinstance(done, Exception), done
            got = [next(answers) for _ in range(5)]
            try:
                self._check(keys, expected, got)
            except AssertionError as exc:
                past = [t.command for t in history[max(0, number - 3) : number]]
                raise AssertionError(
                    f"seed {seed}, command {self.steps + number}: {expected}\n"
                    f"after {past}\n{exc}"
                ) from exc
            heard += expected.heard
        got_heard = [self._message(keys) for _ in heard]
        assert got_heard == heard, f"seed {seed}: {got_heard} were called, not {heard}"

    def _message(self, keys: Keys) -> tuple[str, PushedGrant | None]:
        _, name, payload = self._subscriber.take()
        client_id, pushed = str(name.decode().rpartition("/")[2]), None
        if payload != keys.seat:
            assert payload.startswith(keys.seat + b" ")
            pushed = pushed_in(payload[len(keys.seat) + 1 :])
            assert pushed is not None, payload
        return client_id, pushed

    def _check(self, keys: Keys, expected: ExpectedStep, got: list[Any]) -> None:
        raw, seen, *lives = got
        if isinstance(raw, Exception):
            mapped = from_reply(str(raw), "server")
            assert isinstance(mapped, IllegalCommand), raw
            assert expected.reply is None, raw
        else:
            reply, rung, pushed = decode_step(expected.command, raw)
            assert reply == expected.reply, f"answer: {reply}"
            assert rung == expected.rung, f"rung: {rung}"
            assert pushed == expected.pushed, f"pushed: {pushed}"
        assert not isinstance(seen, Exception), seen
        assert len(seen[4]) == len(expected.record.queue), (
            f"left in the queue: {seen[4]}"
        )
        self.seen[check_plain(seen[3], known=not self._beside_older)] += 1
        snapshot = decode_look(keys.resource, seen)
        assert snapshot.now == expected.now
        self.check_seen(expected, snapshot, lives)
        self._count(expected)

    def _count(self, expected: ExpectedStep) -> None:
        kind = type(expected.command).__name__
        replies = [expected.reply]
        if isinstance(expected.reply, Released):
            replies += expected.reply.then
        for reply in replies:
            why = f" {reply.why}" if isinstance(reply, Refused) else ""
            self.seen[f"{kind} {type(reply).__name__}{why}"] += 1
        self.seen["heard"] += len(expected.heard)
        self.seen["rung"] += expected.rung
        self.seen["pushed to the caller"] += expected.pushed is not None
        self.seen["pushed"] += any(pushed for _, pushed in expected.heard)
        if isinstance(expected.command, Acquire) and expected.command.confirms:
            self.seen[f"confirmed {type(expected.reply).__name__}"] += 1
        self.seen["crowd"] += len(expected.record.grants) > 5
        self.seen["queue"] += len(expected.record.queue) > 2


class PermitComparison(Comparison):
    """Histories of a semaphore, wild ones or quiet ones."""

    keys = PermitKeys

    def shortened(self, text: str) -> str:
        """As it is: a semaphore's seat is never vacated."""
        return text

    def random_history(self, seed: int, seat: str, **kind: bool) -> RandomPermitHistory:
        """Who tells the histories."""
        return RandomPermitHistory(seed, seat, **kind)

    def _count(self, expected: ExpectedStep) -> None:
        super()._count(expected)
        record = expected.record
        self.seen["several called"] += len(expected.heard) + expected.rung > 1
        self.seen["limits differ"] += len({g.limit for g in record.grants}) > 1
        granted = getattr(expected.reply, "grants", ())
        asked = getattr(expected.command, "claims", ())
        self.seen["in part"] += 0 < len(granted) < len(asked)


def plain(record: Doorman) -> Doorman:
    """Without the order of its grants."""
    grants = sorted(record.grants, key=lambda grant: grant.ticket)
    return replace(record, grants=tuple(grants))


def check_plain(flat: list[bytes], *, known: bool = True) -> str:
    """The field ``plain`` means what plain.lua promises; ``known``: to all programs."""
    texts = [item.decode(errors="replace") for item in flat]
    fields = {n: t for n, t in zip(texts[::2], texts[1::2], strict=True) if t}
    since = fields.pop("plain", None)
    if since != fields.get("updated"):
        assert since is None or not known, f"plain was left behind: {texts}"
        return "not plain"
    held = fields.pop("writer", None)
    assert bool(held) == bool(fields.pop("seat", None))
    number = None if held else fields.get("number")
    assert fields.pop("admit_upto", None) == number, f"admitted: {texts}"
    assert fields.keys() <= MEANT_BY_ALL, f"not plain: {texts}"
    return "plain, held" if held else "plain, free"


def _kept(expected: ExpectedStep, lives: list[int]) -> None:
    """The keys live until the last grant ends and the memory fades; or for ever."""
    doorman = expected.record
    for exists, life in zip(
        (doorman.last, doorman.grants, doorman.queue), lives, strict=True
    ):
        if not exists or life == -2:
            continue
        if doorman.grants and doorman.ends is None:
            assert life == -1, life
        elif expected.reply is not None and (
            doorman.updated == expected.now or doorman.grants
        ):
            last = max(doorman.ends or 0, doorman.updated)
            assert life * 1000 >= last + MEMORY * SECOND, (life, last)


def short_cuts_off(text: str) -> str:
    """The scripts without ``plain.lua`` and ``fast.lua``."""
    return plain_off(edited(text, SHORT_CUTS, NO_SHORT_CUTS))


def plain_off(text: str) -> str:
    """The scripts without ``plain.lua``: nobody reads the field that others write."""
    return edited(text, PLAIN, NO_PLAIN)


def without_plain(text: str) -> str:
    """The scripts of a version that does not know the field ``plain``."""
    text = edited(plain_off(text), "  differ(18, 'plain', '')\n", "")
    for written in (", 'plain', ''", ", 'plain', plain"):
        text = edited(text, written, "")
    return edited(text, "'was', 'plain')", "'was')")


def permit_short_cuts_off(text: str) -> str:
    """The scripts of a semaphore without ``permits_fast.lua``."""
    return edited(text, "if stored[1] == '1' and last and", "if false and last and")


def edited(text: str, old: str, new: str) -> str:
    """The text with one thing changed, which must be there."""
    assert old in text, f"the scripts have changed: {old}"
    return text.replace(old, new)


def main() -> None:
    """A long run: a third without short cuts, each quiet, busy and neither. Half of all
    is a semaphore's.
    """
    commands, seed = int(sys.argv[1]), int((*sys.argv, "1", "1")[2])
    seen: Counter[str] = Counter()
    with TemporaryDirectory() as folder, closing(RedisServer(Path(folder))) as server:
        for change in (str, plain_off, short_cuts_off):
            for kind in ({}, {"quiet": True}, {"busy": True}, {"calm": True}):
                comparison = Comparison(server.port, change=change)
                for _ in range(max(1, commands // 180_000)):
                    seed += 1
                    comparison.run(10_000, seed, **kind)
                seen += comparison.seen
                comparison.close()
        for change in (str, permit_short_cuts_off):
            for quiet in (False, True):
                comparison = PermitComparison(server.port, change=change)
                for _ in range(max(1, commands // 80_000)):
                    seed += 1
                    comparison.run(10_000, seed, quiet=quiet)
                seen += comparison.seen
                comparison.close()
    for what, count in sorted(seen.items()):
        print(f"{count:10} {what}")  # noqa: T201


if __name__ == "__main__":
    main()
