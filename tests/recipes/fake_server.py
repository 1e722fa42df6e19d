"""Locks whose scripts are real, and whose clock and connections are a history's.

The scripts run at a server as they are, but their time is given, and they record their
messages: the history brings each message to its subscribers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from hiredis import ReplyError

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.protocol import (
    Arg,
    Call,
    Request,
    Script,
)
from aiorwlock_remote.backends.redis.errors import from_reply, not_sent
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.locks.held import Held
from tests.backends.redis.differential import Wire, edited
from tests.fixed_clock import StandingClock

T = TypeVar("T")

DB = 9
BEGAN = 4_000_000_000
"""What the server's clock says at the beginning: no key of it expires meanwhile."""
MUST_GO = 30.0
HERE = "here"
CLOCK, MESSAGES = "fake.clock", "fake.messages"
"""The time, and whose channels are heard; the messages of the last script."""
LATER = f"""
for _, key in ipairs(KEYS) do
  local ends, now = redis.call('PEXPIRETIME', key), redis.call('HGET', '{CLOCK}', 's')
  if ends > 0 and ends <= now * 1000 + redis.call('HGET', '{CLOCK}', 'u') / 1000 then
    redis.call('DEL', key)
  end
end
"""
CALLS = f"""
local function call(name, ...)
  if name == 'TIME' then return redis.call('HMGET', '{CLOCK}', 's', 'u') end
  if name == 'PUBLISH' then
    redis.call('RPUSH', '{MESSAGES}', ...)
    return redis.call('HEXISTS', '{CLOCK}', (...))
  end
  return redis.call(name, ...)
end
"""


class Server:
    """One server, at the history's time. ``mood``: how it refuses, or ""."""

    scripts: tuple[Script, ...]
    """All that are run; the first is refused when it is out of memory."""
    look: tuple[tuple[Arg, ...], ...]
    """The commands that show what lies there."""

    def __init__(self, port: int, clock: StandingClock) -> None:
        self.clock = clock
        self.mood = ""
        self.lines: list[Line] = []
        self.bereft = False
        """Whether a process was cut off, or refused, when it closed."""
        self._wire = Wire(port)
        self.ask("SELECT", DB)
        self.ask("FLUSHDB")
        self._shas = {script: self._load(script) for script in self.scripts}

    @property
    def now(self) -> int:
        """Microseconds."""
        return BEGAN * 1_000_000 + round(self.clock.seconds * 1e6)

    def carry_out(self, script: Script, args: tuple[Arg, ...]) -> Any:  # noqa: ANN401
        """The answer, which may be an error; messages reach the connected clients."""
        enters = script is self.scripts[0]
        if self.mood and (enters or not self.mood.startswith("OOM")):
            return ReplyError(self.mood)
        asked = [*self.look, ("EVALSHA", self._shas[script], *args), *self.look]
        answers, messages = self._run(asked)
        answer = answers[len(self.look)]
        assert not isinstance(answer, Exception), answer
        self.check(args, answers)
        for channel, payload in zip(messages[::2], messages[1::2], strict=True):
            for line in self.lines:
                if line.up and line.own == channel:
                    line.answers.append((None, payload))
        return answer

    def check(self, args: tuple[Arg, ...], answers: list[Any]) -> None:
        """What lay there before, what a script answered, what lies there now."""
        raise NotImplementedError

    def holds(self, held: Held) -> bool:
        """Whether this is so."""
        raise NotImplementedError

    def grants(self, lease: float) -> list[bytes]:
        """What is held now, by anybody."""
        raise NotImplementedError

    def places(self) -> list[tuple[int, str]]:
        """Those in the queue that have not ended: whose, and for what."""
        raise NotImplementedError

    def forget(self) -> None:
        """Everything."""
        self.ask("FLUSHDB")

    def evaluate(self, text: str, *args: Arg) -> Any:  # noqa: ANN401 - any answer
        """What another program does, or somebody who looks."""
        (answer,), _ = self._run([("EVAL", LATER + text, *args)])
        assert not isinstance(answer, Exception), answer
        return answer

    def ask(self, *args: Arg) -> Any:  # noqa: ANN401 - any answer
        """One command."""
        (answer,) = self._wire.ask([args])
        return answer

    def close(self) -> None:
        """Hang up."""
        self._wire.close()

    def _run(self, asked: list[tuple[Arg, ...]]) -> tuple[list[Any], list[bytes]]:
        s, u = divmod(self.now, 1_000_000)
        subscribers: list[tuple[Arg, Arg]] = [
            (line.own, 1) for line in self.lines if line.up
        ]
        clock = ("HSET", CLOCK, "s", s, "u", u, *chain(*subscribers))
        heard = ("LRANGE", MESSAGES, 0, -1), ("DEL", MESSAGES)
        _, _, *answers, messages, _ = self._wire.ask(
            [("DEL", CLOCK), clock, *asked, *heard]
        )
        return answers, messages

    def _load(self, script: Script) -> bytes:
        text = edited(script.text, "local call = redis.call\n", LATER + CALLS)
        head, calls, rest = text.partition(CALLS)
        text = head + calls + rest.replace("redis.pcall(", "call(")
        sha = self.ask("SCRIPT", "LOAD", text)
        assert isinstance(sha, bytes), sha
        return sha


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
        self.troubled_at = -math.inf
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
        call.queued_at = self.server.clock.now()
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
        """Again; what waited for that is sent, and the listeners look again."""
        if not self.up and not self.closed:
            self.up = True
            self.sent.extend(self._aside)
            self._aside.clear()
            self.on_reconnect()

    def time_passed(self) -> None:
        """A call that waited for too long fails."""
        now = self.server.clock.now()
        waiting = [call for call, _ in self.answers if call] + [*self.sent]
        if waiting and now - waiting[0].queued_at > self._silence:
            self.cut()
        for call in list(self._aside):
            waited = now - call.queued_at
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
        while not all(call.done() for call in last):
            pending = next(call for call in last if not call.done())
            try:
                await pending
            except BackendUnavailable:
                continue

    def subscribe(self, channel: bytes) -> None:
        raise NotImplementedError  # no history needs it


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
        return from_reply(str(answer), HERE) if refused else answer

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
