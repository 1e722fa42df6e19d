"""Records Redis: the server itself writes down what each script does, in its order.

The scripts are the library's own, wrapped: in the same atomic step the server adds an
entry to a stream with the arguments, its time, all keys of the resource before and
after, and who was called. A process writes down which command each request is, and what
its caller received.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.backends.redis import codec, store
from aiorwlock_remote.backends.redis.connection.protocol import Arg, Script
from aiorwlock_remote.backends.redis.connection.protocol import Request as Sent
from aiorwlock_remote.backends.redis.keys import Keys, PermitKeys
from aiorwlock_remote.backends.redis.scripts import (
    ENTER,
    LEAVE,
    PERMIT_ENTER,
    PERMIT_LEAVE,
)
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from tests.servers.redis import talk
from tests.traces.faults import IN_LUA
from tests.traces.history import NOTHING, Journal, Request, State

STREAM = "traces"
PAGE = 500

Replies = defaultdict[tuple[str, str, Command], list[Reply]]

_BEFORE = """
local trace_now = redis.call('TIME')
local trace_entry = {'XADD', 'traces', '*', 'now', string.format('%d',
  trace_now[1] * 1000000 + trace_now[2])}
local function trace_put(name, value)
  trace_entry[#trace_entry + 1] = name
  trace_entry[#trace_entry + 1] = value
end
local function trace_all(name, values)
  for _, value in ipairs(values) do trace_put(name, value) end
end
local function trace_state(when)
  local seat = redis.call('GET', KEYS[1])
  if seat then trace_put(when .. 'seat', seat) end
  trace_put(when .. 'ends', string.format('%d', redis.call('PEXPIRETIME', KEYS[1])))
  trace_all(when .. 'state', redis.call('HGETALL', KEYS[2]))
  trace_all(when .. 'queue', redis.call('ZRANGE', KEYS[4], 0, -1))
  trace_all(when .. 'members', redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'))
end
local function trace_publish(command, channel, text)
  local heard = redis.pcall(command, channel, text)
  trace_put('called', channel)
  trace_put('heard', heard == 0 and '0' or '1')
  return heard
end
trace_all('key', KEYS)
trace_all('arg', ARGV)
trace_state('before ')
local function trace_step()
"""
_AFTER = """
end
local trace_answer = trace_step()
trace_state('after ')
if type(trace_answer) == 'table' and trace_answer.err then
  trace_put('error', trace_answer.err)
end
redis.call(unpack(trace_entry))
return trace_answer
"""
# Before Redis 7.2 the time goes on within a script.
_CLOCK = "local clock = call('TIME')"
_PUBLISHING = (
    ("redis.pcall(wake and 'SPUBLISH'", "trace_publish(wake and 'SPUBLISH'"),
    ("try(wake and 'SPUBLISH'", "trace_publish(wake and 'SPUBLISH'"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Fact: a request is about to be sent; ``args`` are what follows its script."""

    resource: Resource
    command: Command
    client_id: str
    args: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ReplyRead:
    """Fact: the answer to a request was read as ``reply``."""

    resource: str
    command: Command
    reply: Reply


def watched(script: Script, fault: str = "") -> Script:
    """Return the script that also writes down what it does; ``fault``: one that is
    planted into it.
    """
    first, _, text = script.text.partition("\n")
    assert _CLOCK in text, f"{script.name} reads the time elsewhere"
    text = text.replace(_CLOCK, "local clock = trace_now")
    for old, new in _PUBLISHING:
        text = text.replace(old, new)
    if fault:
        sound, broken = IN_LUA[fault]
        # A semaphore has no readers, so its scripts do not have the text.
        known = sound in text or script.name.startswith("permit")
        assert known, f"{script.name} has changed: {sound}"
        text = text.replace(sound, broken)
    places = text.count("'SPUBLISH'")
    assert places > 0, f"{script.name} calls nobody"
    assert text.count("trace_publish(wake") == places, f"{script.name} calls elsewhere"
    return Script(script.name, f"{first}\n{_BEFORE}{text}{_AFTER}", script.waits)


@contextmanager
def recorded_scripts(journal: Journal, fault: str = "") -> Iterator[None]:
    """Send watched scripts, and write down every request and answer."""
    encode, renewed = codec.encode, store._outcome
    decode = store.RedisStore._decode

    def watched_encode(keys: Keys, command: Command, client_id: str = "") -> Sent:
        script, args = encode(keys, command, client_id)
        plain = tuple(map(_bytes_of, args))
        journal.write(Asked(keys.resource, command, client_id, plain))
        return script, args

    def watched_decode(self: Any, keys: Keys, command: Command, raw: object) -> Reply:  # noqa: ANN401 - a store
        reply = decode(self, keys, command, raw)
        journal.write(ReplyRead(keys.resource.key, command, reply))
        return reply

    def watched_renewed(
        resource: Resource, command: Renew, raw: object
    ) -> Grant | NotHeld | Exception:
        outcome = renewed(resource, command, raw)
        if not isinstance(outcome, Exception):
            journal.write(ReplyRead(resource.key, command, Renewed((outcome,))))
        return outcome

    with ExitStack() as stack:
        for kind, enter, leave in (
            (Keys, ENTER, LEAVE),
            (PermitKeys, PERMIT_ENTER, PERMIT_LEAVE),
        ):
            stack.enter_context(patch.object(kind, "enter", watched(enter, fault)))
            stack.enter_context(patch.object(kind, "leave", watched(leave, fault)))
        stack.enter_context(patch.object(store, "encode", watched_encode))
        stack.enter_context(patch.object(store.RedisStore, "_decode", watched_decode))
        stack.enter_context(patch.object(store, "_outcome", watched_renewed))
        yield


def read_stream(port: int) -> Iterator[dict[str, list[bytes]]]:
    """Yield the entries of the server's stream in order; forget them."""
    start = b"-"
    while True:
        (page,) = talk(port, ("XRANGE", STREAM, start, "+", "COUNT", PAGE))
        for name, flat in page:
            entry: defaultdict[str, list[bytes]] = defaultdict(list)
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                entry[field.decode()].append(value)
            yield entry
            start = b"(" + name
        if len(page) < PAGE:
            talk(port, ("DEL", STREAM))
            return


def requests_of(
    journals: Iterable[tuple[str, Iterable[object]]],
    entries: Iterable[dict[str, list[bytes]]],
) -> tuple[list[Request], Replies]:
    """Return the requests that the server carried out, in its order, and the replies
    that their callers read, by process, resource and command.
    """
    asked: dict[tuple[bytes, ...], tuple[str, Asked]] = {}
    replies: Replies = defaultdict(list)
    for process, facts in journals:
        for fact in facts:
            if isinstance(fact, Asked):
                asked[fact.args] = process, fact
            elif isinstance(fact, ReplyRead):
                replies[process, fact.resource, fact.command].append(fact.reply)
            else:
                raise TypeError(f"not a fact of Redis: {fact!r}")
    requests: list[Request] = []
    for entry in entries:
        keys, args = entry["key"], entry["arg"]
        process, request = asked[str(len(keys)).encode(), *keys, *args]
        requests.append(_request_of(process, request, entry))
    return requests, replies


def _request_of(process: str, asked: Asked, entry: dict[str, list[bytes]]) -> Request:
    now = int(entry["now"][0])
    called = [channel.decode().rpartition("/")[2] for channel in entry["called"]]
    heard = [flag == b"1" for flag in entry["heard"]]
    return Request(
        process,
        asked.resource.key,
        asked.command,
        now,
        now,
        now,
        _state_of(asked.resource, "before ", now, entry),
        _state_of(asked.resource, "after ", now, entry),
        illegal=bool(entry["error"]),
        own=asked.client_id,
        called=tuple(zip(called, heard, strict=True)),
    )


def _state_of(
    resource: Resource, when: str, now: int, entry: dict[str, list[bytes]]
) -> State:
    seat, ends = entry[f"{when}seat"], int(entry[f"{when}ends"][0])
    hashes = (entry[f"{when}{part}"] for part in ("state", "queue", "members"))
    looked = decode_look(resource, [now, seat[0] if seat else None, ends, *hashes])
    state = State(looked.record, looked.seat)
    return NOTHING if not entry[f"{when}state"] and not seat else state


def _bytes_of(arg: Arg) -> bytes:
    return arg if isinstance(arg, bytes) else str(arg).encode()
