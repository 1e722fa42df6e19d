"""Mutex sets whose scripts are real, and whose clock and connections are a story's.

The scripts run at a server as they are, but that they are told the time, and say whom
they would have told what: the story brings it to whoever hears it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hiredis import ReplyError

from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.connection.script import Arg, Request, Script
from aiorwlock_remote.backends.redis.errors import not_sent, of_reply
from aiorwlock_remote.backends.redis.scripts import SET_ENTER, SET_LEAVE
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import Pending
from tests.backends.redis.differential import Wire, edited
from tests.recipes.fix_sets import KEY, QUEUE, STATE
from tests.standing import StandingClock

T = TypeVar("T")

DB = 9
BEGAN = 4_000_000_000
"""What the server's clock says at the beginning: no key of it expires meanwhile."""
MUST_GO = 30.0
HERE = "here"
TOLD = """
local told = {}
local function call(name, ...)
  if name == 'TIME' then return redis.call('HMGET', 'clock', 's', 'u') end
  if name == 'PUBLISH' then
    told[#told + 1] = {...}
    return 0
  end
  return redis.call(name, ...)
end
"""


class Server:
    """One server, at the story's time. ``mood``: how it refuses, or ""."""

    def __init__(self, port: int, clock: StandingClock) -> None:
        self.clock = clock
        self.mood = ""
        self.lines: list[Line] = []
        self.bereft = False
        """Whether a process was cut off, or refused, when it closed."""
        self._wire = Wire(port)
        self._ask("SELECT", DB)
        self._ask("FLUSHDB")
        self._shas = {script: self._load(script) for script in (SET_ENTER, SET_LEAVE)}

    @property
    def now(self) -> int:
        """Microseconds."""
        return BEGAN * 1_000_000 + round(self.clock.seconds * 1e6)

    def carry_out(self, script: Script, args: tuple[Arg, ...]) -> Any:  # noqa: ANN401
        """The answer, which may be an error; what is told reaches who is connected."""
        if self.mood and (script is SET_ENTER or not self.mood.startswith("OOM")):
            return ReplyError(self.mood)
        s, u = divmod(self.now, 1_000_000)
        evaluate = ("EVALSHA", self._shas[script], *args)
        *_, answer = self._wire.ask([("HSET", "clock", "s", s, "u", u), evaluate])
        assert not isinstance(answer, Exception), answer
        told, answer = answer
        for channel, payload in told:
            for line in self.lines:
                if line.up and line.own == channel:
                    line.answers.append((None, payload))
        return answer

    def forget(self) -> None:
        """Everything."""
        self._ask("FLUSHDB")

    def remove(self, name: str) -> None:
        """As another program does."""
        self._ask("ZREM", KEY, name)

    def write(self, name: str, score: float) -> None:
        """As another program does."""
        self._ask("ZADD", KEY, f"{score:.6f}", name)

    def score(self, name: str) -> float | None:
        """Seconds; None: there is no such mutex."""
        found = self._ask("ZSCORE", KEY, name)
        return None if found is None else float(found)

    def holds(self, name: str, ticket: str, lease: float) -> bool:
        """Whether this mutex is that ticket's now."""
        last, told = self._ask("HMGET", STATE, f"m{name}", f"t{ticket}")
        score = self.score(name)
        return (
            score is not None
            and last == ticket.encode()
            and float(told.split(b",")[0]) == score
            and score + lease > self.now / 1e6
        )

    def grants(self, lease: float) -> list[bytes]:
        """What is held now, by anybody."""
        since = f"({self.now / 1e6 - lease:.6f}"
        return list(self._ask("ZRANGEBYSCORE", KEY, since, "+inf"))

    def traces(self) -> list[bytes]:
        """What waiting and holding left behind."""
        fields = [f for f in self._ask("HKEYS", STATE) if f not in (b"last", b"number")]
        held = self._ask("ZRANGEBYSCORE", KEY, "(0", "+inf")
        return [*fields, *held, *self.queue()]

    def queue(self) -> list[bytes]:
        """The places."""
        return list(self._ask("ZRANGE", QUEUE, 0, -1))

    def places(self) -> list[bytes]:
        """Those that have not ended."""
        return [place for place in self.queue() if self._end(place) > self.now]

    def close(self) -> None:
        """Hang up."""
        self._wire.close()

    def _load(self, script: Script) -> bytes:
        text = edited(script.text, "local call = redis.call\n", TOLD)
        text = edited(text, "return {rung,", "return {told, {rung,")
        text = edited(text, "unpack(answers)}", "unpack(answers)}}")
        sha = self._ask("SCRIPT", "LOAD", text)
        assert isinstance(sha, bytes), sha
        return sha

    def _end(self, place: bytes) -> int:
        told: bytes = self._ask("HGET", STATE, b"p" + place) or b"0"
        return int(told.partition(b",")[0])

    def _ask(self, *args: Arg) -> Any:  # noqa: ANN401 - any answer
        (answer,) = self._wire.ask([args])
        return answer


class Line:
    """The endpoint of one process, with the promises of a ``Link``.

    Requests are carried out one by one, answers come one by one; cut, what was sent is
    lost, and may have been carried out. ``silence``: seconds after which it is cut.
    """

    def __init__(
        self, server: Server, own: bytes, patience: float, silence: float
    ) -> None:
        self.server = server
        self.own = own
        self.up = True
        self.sent: deque[Call[Any]] = deque()
        self.answers: deque[tuple[Call[Any] | None, Any]] = deque()
        self.on_message: Callable[[bytes, bytes], object] = lambda *_: None
        self.on_reconnect: Callable[[], object] = lambda: None
        self.closed = False
        self.troubled_at = 0.0
        """When something was lost or refused."""
        self._aside: deque[Call[Any]] = deque()
        self._patience = patience
        self._silence = silence
        server.lines.append(self)

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        call = Call(decode, args, script, must_go)
        if self.closed:
            call.failed(not_sent(HERE, "closed"))
            return call
        call.since = self.server.clock.now()
        (self.sent if self.up else self._aside).append(call)
        return call

    def carry_out(self) -> bool:
        """The next one; False: there is none."""
        if not self.sent:
            return False
        call = self.sent.popleft()
        assert call.script is not None
        self.answers.append((call, self.server.carry_out(call.script, call.args)))
        return True

    def deliver(self) -> bool:
        """The next answer or message; False: there is none."""
        if not self.answers:
            return False
        call, answer = self.answers.popleft()
        if call is None:
            self.on_message(self.own, answer)
        elif isinstance(answer, Exception):
            self.server.bereft |= self.closed
            self.troubled_at = self.server.clock.now()
            call.refused(str(answer), HERE)
        else:
            call.answered(answer)
        return True

    def cut(self) -> None:
        """What was not answered is lost."""
        self.up = False
        self.troubled_at = self.server.clock.now()
        lost = [call for call, _ in self.answers if call is not None] + [*self.sent]
        self.answers.clear()
        self.sent.clear()
        self.server.bereft |= self.closed and bool(lost)
        for call in lost:
            call.failed(BackendUnavailable(what="the connection was lost"))

    def connect(self) -> None:
        """Again; what waited for that is sent, and whoever listens is told to look."""
        if not self.up and not self.closed:
            self.up = True
            self.sent.extend(self._aside)
            self._aside.clear()
            self.on_reconnect()

    def time_passed(self) -> None:
        """Whoever waited for too long is told."""
        now = self.server.clock.now()
        waiting = [call for call, _ in self.answers if call] + [*self.sent]
        if waiting and now - waiting[0].since > self._silence:
            self.cut()
        for call in list(self._aside):
            waited = now - call.since
            if waited >= (MUST_GO if call.must_go else self._patience):
                self._aside.remove(call)
            if waited >= self._patience:
                call.failed(not_sent(HERE, "away", for_good=not call.must_go))

    async def aclose(self) -> None:
        """Wait for the answers still to come; what was put aside is lost."""
        last = [*self.sent, *(call for call, _ in self.answers if call)]
        for call in self._aside:
            call.failed(not_sent(HERE, "closed"))
        self._aside.clear()
        self.closed = True
        while not all(call.done for call in last):
            pending = next(call for call in last if not call.done)
            try:
                await pending
            except BackendUnavailable:
                continue

    # What a mutex set needs no server for.

    def subscribe(self, channel: bytes) -> None:
        raise NotImplementedError

    def unsubscribe(self, channel: bytes) -> None:
        raise NotImplementedError


class Batches:
    """What renewals go over. ``outcome``: "well", "away" or "lost reply"."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.outcome = "well"

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        assert timeout > 0
        if self.outcome == "away":
            raise BackendUnavailable(what="away")
        answers = [self._refusal(self.server.carry_out(*one)) for one in batch]
        if self.outcome == "lost reply":
            raise BackendUnavailable(what="lost")
        return answers

    @staticmethod
    def _refusal(answer: Any) -> Any:  # noqa: ANN401 - any answer
        refused = isinstance(answer, ReplyError)
        return of_reply(str(answer), HERE) if refused else answer

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass

    @contextmanager
    def having(self, outcome: str) -> Iterator[None]:
        """Meanwhile."""
        self.outcome, before = outcome, self.outcome
        yield
        self.outcome = before
